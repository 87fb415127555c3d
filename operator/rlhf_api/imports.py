"""Objects of a user's own modules, named `package.module:name`."""

import importlib
import sys
from pathlib import Path
from typing import Any


def look_here() -> None:
    """Modules are looked for in the current directory first, as in a role that runs there."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def named_object(path: str) -> Any:
    """The object; raises whatever its module does, which may be anything."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
