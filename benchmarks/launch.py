"""`rlhf run`, as the benchmarks start it."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def rlhf_run(manifest: Path, workdir: Path, overrides: Iterable[str], output: IO[str] | int) -> None:
    """Runs a manifest to its end. Raises CalledProcessError where that is no good one."""
    sets = [part for override in overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "rlhf_operator.cli", "run", str(manifest), "--workdir", str(workdir)]
    subprocess.run([*command, *sets], check=True, stdout=output)
