"""Runs full garbage collections between steps only.

A full collection holds the GIL while it visits every object, tenths of a second with thousands of requests running: no
other thread runs, and all ranks wait for the one that collects.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_collections_by_hand() -> Iterator[None]:
    """Full collections run only where `gc.collect` is called, and skip the objects that exist now, such as imported
    modules. Young generations are collected as usual."""
    young, middle, old = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, sys.maxsize >> 32)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        gc.unfreeze()
