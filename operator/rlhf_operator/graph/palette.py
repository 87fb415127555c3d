"""Colours of the drawings: one for each role, told apart by people who see few colours too (Okabe and Ito 2008)."""

from rlhf_api.roles import Role

INK = "#1f2933"
FAINT = "#6b7785"
FILL = {
    Role.TRAINER: "#e3eefb",
    Role.GENERATOR: "#fdf1d6",
    Role.REWARD: "#dff3ea",
    Role.REFERENCE: "#f7e4f0",
}
LINE = {
    Role.TRAINER: "#0072b2",
    Role.GENERATOR: "#d18f00",
    Role.REWARD: "#009e73",
    Role.REFERENCE: "#cc79a7",
}
COLUMNS = ("#0072b2", "#c4570c", "#009e73", "#b3498a", "#8a6d00", "#3f88c5", "#7a5195", "#a3333d")
"""Of the lines, in turn; sequences, which most nodes read, are `FAINT`."""
