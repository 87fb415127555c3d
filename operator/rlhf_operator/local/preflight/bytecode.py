"""Packages without compiled modules, which each process compiles anew at its start."""

import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import cache_from_source
from pathlib import Path


def uncompiled(environ: Mapping[str, str], package: str = "torch") -> str | None:
    """A line for the user where `package` has no compiled modules and processes with `environ` keep none: imports of
    vLLM then take twice as long at each start. None otherwise."""
    if not environ.get("PYTHONDONTWRITEBYTECODE"):
        return None
    module = PathFinder.find_spec(package)
    if module is None or module.origin is None or Path(cache_from_source(module.origin)).exists():
        return None
    command = f"{sys.executable} -m compileall -q -j 0 {Path(module.origin).parents[1]}"
    reason = f"{package} has no compiled modules, and PYTHONDONTWRITEBYTECODE lets no process keep its own"
    return f"{reason}: each start takes ten seconds or more longer; once, run `{command}`, or unset it"
