"""Another Python interpreter, in which workers run: what they need of it, read from its files or asked of itself."""

import json
import os
import re
import subprocess
from pathlib import Path

from .redaction import without_secrets

LEAST_PYTHON, LEAST_PYDANTIC = (3, 11), (2, 12)
ISOLATED = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would give it the packages of another."""
_SECONDS = 60.0
_PROBE = """
import sys
del sys.path[0]
import json
try:
    from pydantic import VERSION
except ImportError:
    VERSION = ""
print(json.dumps([list(sys.version_info[:2]), VERSION]))
"""


def problem_by_files(python: str) -> str:
    """The reason why workers cannot run in it, as far as files tell without running it: those of a virtual environment
    do; empty if none is known."""
    file = Path(python)
    if not file.is_file() or not os.access(file, os.X_OK):
        return "is not a program here; give the path of a Python interpreter, such as envs/games/bin/python"
    folder = file.absolute().parent.parent
    try:
        lines = (folder / "pyvenv.cfg").read_text(errors="replace").splitlines()
    except OSError:  # of no virtual environment
        return ""
    settings = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    version = _numbers(settings.get("version") or settings.get("version_info") or "")
    if len(version) < len(LEAST_PYTHON) or settings.get("include-system-site-packages") == "true":
        return ""
    packages = folder / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"
    if not packages.is_dir():
        return _unfit(python, version, None)
    known = packages.glob("pydantic-*.dist-info")
    return _unfit(
        python, version, next((each.name.removesuffix(".dist-info").split("-")[1] for each in known), "")
    )


def problem_by_running(python: str) -> str:
    """As `problem_by_files`, and what the interpreter itself says."""
    if reason := problem_by_files(python):
        return reason
    environ = {name: value for name, value in without_secrets(os.environ).items() if name not in ISOLATED}
    command = [python, "-c", _PROBE]
    try:
        probe = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, env=environ, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not say its version within {_SECONDS:g} s"
    except OSError as error:
        return f"is no Python interpreter: {error}"
    try:
        version, pydantic = json.loads(probe.stdout)
        return _unfit(python, tuple(map(int, version)), str(pydantic))
    except (ValueError, TypeError):
        errors = probe.stderr.decode(errors="replace").strip()[-300:]
        return f"is no Python interpreter: {errors or 'it did not say its version'}"


def _unfit(python: str, version: tuple[int, ...], pydantic: str | None) -> str:
    """`pydantic`: its version; empty: there is none; None: not known."""
    least = ".".join(map(str, LEAST_PYDANTIC))
    if version < LEAST_PYTHON:
        return (
            f"is Python {version[0]}.{version[1]}; workers need {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer"
        )
    remedy = f"run `{python} -m pip install 'pydantic>={least}'`"
    if pydantic == "":
        return f"has no pydantic, which workers need; {remedy}"
    if pydantic is not None and _numbers(pydantic) < LEAST_PYDANTIC:
        return f"has pydantic {pydantic}; {remedy}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
