"""Adaptive coefficient of the entropy bonus."""


def adaptive_entropy_coefficient(coefficient: float, observed: float, target: float, change: float) -> float:
    """c + change where the entropy `observed` is at most the `target`, else max(0, c - change): the next step's.

    Source: He et al. 2025 (arXiv:2505.22312), adaptive entropy control of Skywork-OR1; theirs has no bound at 0, below
    which the bonus would be a penalty of entropy.
    """
    return coefficient + change if observed <= target else max(0.0, coefficient - change)
