"""Fault-injection points for tests; no-ops unless the environment names a function."""

import os
from collections.abc import Callable
from functools import cache

from rlhf_api.host.imports import named_object

VARIABLE = "RLHF_FAULTS"
"""`module:function`, called with the name of each point reached."""


@cache
def _hook() -> Callable[[str], None] | None:
    path = os.environ.get(VARIABLE)
    return named_object(path) if path else None


def point(name: str) -> None:
    """A point at which a test may kill a process or a peer, or fill a disk."""
    if (hook := _hook()) is not None:
        hook(name)
