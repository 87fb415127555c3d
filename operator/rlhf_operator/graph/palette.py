"""Colours of the drawings: one per role, distinguishable with colour vision deficiency (Okabe and Ito 2008)."""

from rlhf_api.roles import Role

INK = "#1f2933"
FAINT = "#6b7785"
_FILLS = ("#e3eefb", "#fdf1d6", "#dff3ea", "#f7e4f0", "#fbe5d8", "#e2f3fb")
_LINES = ("#0072b2", "#d18f00", "#009e73", "#cc79a7", "#d55e00", "#3f88c5")
FILL = {role: _FILLS[i % len(_FILLS)] for i, role in enumerate(Role)}
LINE = {role: _LINES[i % len(_LINES)] for i, role in enumerate(Role)}
COLUMNS = ("#0072b2", "#c4570c", "#009e73", "#b3498a", "#8a6d00", "#3f88c5", "#7a5195", "#a3333d")
"""Line colours, in turn; sequences, which most nodes read, are `FAINT`."""
