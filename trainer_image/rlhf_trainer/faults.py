"""Fault-injection points for tests; no-ops unless the environment names a function."""

import importlib
import os
from collections.abc import Callable
from functools import cache

VARIABLE = "RLHF_FAULTS"
"""`module:function`, called with the name of each point reached."""


@cache
def _hook() -> Callable[[str], None] | None:
    module, _, name = os.environ.get(VARIABLE, "").partition(":")
    return getattr(importlib.import_module(module), name) if module else None


def point(name: str) -> None:
    """A point at which a test may kill a process or a peer, or fill a disk."""
    if (hook := _hook()) is not None:
        hook(name)
