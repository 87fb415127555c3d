"""The wheel's own environment, the versions that constraints pin, and commands."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WHEEL = ROOT / ".venv-operator"
"""An environment with the wheel and the operator's extra, and nothing of this clone."""
OF_WHEEL = pytest.mark.skipif(not WHEEL.exists(), reason="`make .venv-operator` makes this environment")


def done(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=900, check=False
    )


def pins(name: str) -> dict[str, str]:
    """Versions by normalized name that one of the constraints files sets, with those it includes."""
    versions: dict[str, str] = {}
    for line in (ROOT / "constraints" / name).read_text().splitlines():
        if line.startswith("-c "):
            versions |= pins(line.removeprefix("-c "))
        elif line and not line.startswith("#"):
            package, _, pinned_version = line.partition("==")
            assert normalized(package) not in versions, f"{package} is pinned twice"
            versions[normalized(package)] = pinned_version
    return versions


def normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
