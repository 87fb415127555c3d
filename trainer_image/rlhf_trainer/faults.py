"""Named points at which a test may let something go wrong; nothing happens unless one asks for it."""

import importlib
import os
from collections.abc import Callable
from functools import cache

VARIABLE = "RLHF_FAULTS"
"""`module:function`, called with the name of each point that is reached."""


@cache
def _hook() -> Callable[[str], None] | None:
    module, _, name = os.environ.get(VARIABLE, "").partition(":")
    return getattr(importlib.import_module(module), name) if module else None


def point(name: str) -> None:
    """A moment at which a process may be killed, a peer may die, a disk may fill."""
    if (hook := _hook()) is not None:
        hook(name)
