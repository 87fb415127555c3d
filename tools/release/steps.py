"""Shared by all steps of a release: the places of the repository, how a command is run, and how a step fails."""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CHART = ROOT / "charts" / "rlhf-operator"
_DOCUMENT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: str = _DOCUMENT["project"]["version"]
HOME: str = _DOCUMENT["project"]["urls"]["Homepage"]
REGISTRY: str = _DOCUMENT["tool"]["release"]["registry"]
FILES: str = _DOCUMENT["tool"]["release"]["files"]
SUMS = "SHA256SUMS"


class Failed(SystemExit):
    """A step failed; its message ends the program where nobody catches it."""


def run(*command: str | Path, cwd: Path | None = None, input: str | None = None, **environment: str) -> str:
    """The output of a command; its standard error is passed on when it ends."""
    words = [str(part) for part in command]
    done = subprocess.run(
        words, cwd=cwd, input=input, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        problem = f"failed with {done.returncode}: {last_line(done.stderr)}"
        raise Failed(f"error: `{shlex.join(words)}` {problem}\n{done.stdout[-4000:]}")
    return done.stdout


def last_line(text: str) -> str:
    return " ".join(text.strip().splitlines()[-1:])


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(f"error: {otherwise}")


def expect_programs(*names: str) -> None:
    missing = [name for name in names if not shutil.which(name)]
    expect(not missing, f"no {' and no '.join(missing)} here; install the packages of these names")


def say(text: str) -> None:
    print(text, flush=True)
