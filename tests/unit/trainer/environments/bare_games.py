"""Environments for an interpreter without packages."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any


class Bare:
    """Its opening is the interpreter that it runs in: the environment, the packages that it has imported by their
    modules, and whether it finds `looks_for`."""

    def __init__(self, *, looks_for: str = "torch") -> None:
        self._looks_for = looks_for

    def reset(self, _row: dict[str, Any]) -> str:
        opening = {
            "prefix": sys.prefix,
            "modules": [*sys.modules],
            "hashes": os.environ.get("PYTHONHASHSEED"),
            "space": str(Path("/proc/self/ns/pid").readlink()),
            "finds": importlib.util.find_spec(self._looks_for) is not None,
        }
        return json.dumps(opening)

    def step(self, message: dict[str, Any]) -> tuple[str, float, bool]:
        return "", float(message["content"] == "yes"), True


class WithTool:
    def reset(self, _row: dict[str, Any]) -> None: ...

    def add(self, a: int, b: int) -> int:
        """Adds.

        Args:
            a: One.
            b: Another.
        """
        return a + b

    def step(self, _message: dict[str, Any]) -> tuple[str, float, bool]:
        return "", 0.0, True
