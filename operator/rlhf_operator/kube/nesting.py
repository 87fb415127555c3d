"""Raises Python's recursion limit to the depth that an API server accepts, so that any stored object can be read.

Free-form fields of a job, such as a pod template, may be nested that deep, and Python's JSON parser recurses once for
each level. At the default limit one such job ends the listing, and so the operator, for all jobs. What is deeper than a
manifest may be is refused with that job's name afterwards (`document.not_json`).
"""

import sys

DEEPEST = 10_000
"""Levels of an object that Go's JSON parser accepts; Python 3.11's, which the image has, takes less than 2 MB of stack.
Python 3.12 has a limit of its own for calls in C, which cannot be raised."""
_MORE = 2_000
"""Recursion depth added for a list around the object and for Python's own calls."""


def allow_deep_json() -> None:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST + _MORE))
