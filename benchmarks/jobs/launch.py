"""`rlhf run`, as the benchmarks start it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def rlhf_run(manifest: Path, workdir: Path, overrides: Iterable[str], output: IO[str] | int) -> None:
    """Runs a manifest to its end. Raises CalledProcessError where that is no good one."""
    subprocess.run(_command(manifest, workdir, overrides), check=True, stdout=output)


def rlhf_steps(
    manifest: Path, workdir: Path, overrides: Iterable[str], output: IO[str] | int, steps: int
) -> None:
    """Runs a manifest of more than `steps` steps until so many are done, and leaves no checkpoint. Raises
    RuntimeError where it ends before."""
    metrics = workdir / "metrics.jsonl"
    with subprocess.Popen(_command(manifest, workdir, overrides), stdout=output) as run:
        try:
            while run.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= steps):
                time.sleep(0.1)
            ended = run.poll()
        finally:
            while run.poll() is None:  # the first asks for a checkpoint, the second to end at once
                run.send_signal(signal.SIGINT)
                time.sleep(0.5)
    if ended is not None:
        raise RuntimeError(f"the run ended with code {ended} before step {steps}: see {workdir}/logs")


def _command(manifest: Path, workdir: Path, overrides: Iterable[str]) -> list[str]:
    sets = [part for override in overrides for part in ("--set", override)]
    return [
        *(sys.executable, "-m", "rlhf_operator.cli", "run", str(manifest), "--workdir", str(workdir)),
        *sets,
    ]
