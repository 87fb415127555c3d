"""Counts a trainer's signs of progress, by which its host tells a long step from a hang.

A sign is given where work is done, such as for each micro-batch or token, and in each turn of a wait that has a
deadline of its own; by other threads than the one that trains only for work that ends by itself.
"""

import itertools

_signs = itertools.count(1)
_count = 0


def sign() -> None:
    """One more sign; on any thread."""
    global _count
    _count = next(_signs)


def count() -> int:
    """Signs since the process began."""
    return _count
