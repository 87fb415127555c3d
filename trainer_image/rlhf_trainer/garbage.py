"""When Python's full garbage collections run: between steps, and not in the middle of one.

A full collection holds Python's lock for as long as it takes to look at every object, which thousands of requests under
way make tenths of a second: no other thread runs, and all ranks wait for the one that collects.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_collections_by_hand() -> Iterator[None]:
    """Full collections run where `gc.collect` is called, and leave out what is there now, such as imported modules.
    What dies young is collected as always."""
    young, middle, old = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, sys.maxsize >> 32)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
        gc.unfreeze()
