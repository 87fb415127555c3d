"""`rlhf run` as a user starts it, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.faults import ASKED
from tests.support.forked import warm
from tests.support.run_processes import processes
from tests.support.sources import metrics_page

ROOT = Path(__file__).parents[2]
SENTIMENT = ROOT / "examples" / "sentiment"
Popen: type[subprocess.Popen] = warm.FromNursery
"""How a run's own process starts, and so all of its others."""


@dataclass(frozen=True)
class Finished:
    """A run that ended: its exit code, what it printed, and its work directory."""

    code: int
    output: str
    workdir: Path

    @property
    def steps(self) -> list[dict[str, Any]]:
        rows = lines(self.workdir / "metrics.jsonl")
        metrics_page.check(rows)
        return rows

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.workdir / "status.json").read_text())

    def log(self, process: str) -> str:
        return (self.workdir / "logs" / f"{process}.log").read_text(errors="replace")


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def heed_signals() -> None:
    """As from a terminal: who starts the tests in the background ignores some, and a child inherits that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(
    manifest: Path,
    workdir: Path,
    *overrides: str,
    flags: tuple[str, ...] = (),
    module: str = "rlhf_operator.cli",
    **environ: str,
) -> subprocess.Popen:
    """`rlhf run` in the repository's root, each override as `--set`."""
    sets = [part for override in overrides for part in ("--set", override)]
    return launch("run", str(manifest), "--workdir", str(workdir), *sets, *flags, module=module, **environ)


def launch(*arguments: str, module: str = "rlhf_operator.cli", **environ: str) -> subprocess.Popen:
    """`rlhf` with these arguments in the repository's root, its output in one pipe."""
    return Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environ,
        preexec_fn=heed_signals,
    )


def finish(process: subprocess.Popen, workdir: Path, timeout: float = 1500) -> Finished:
    """Waits for its end, which leaves no process of the run behind."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
        raise AssertionError(f"`rlhf run` did not end within {timeout:.0f} s:\n{output[-3000:]}") from None
    assert not processes(workdir), "processes were left behind"
    return Finished(process.returncode, output, workdir)


def stop_after_first_step(manifest: Path, workdir: Path, *overrides: str, timeout: float) -> Finished:
    """A run that gets a Ctrl-C after step 1, of which its trainer hears before step 2; it has `timeout` seconds to
    end then."""
    process = start(manifest, workdir, *overrides, RLHF_FAULTS="tests.support.faults:hold_second_step")
    late = threading.Timer(1200, process.kill)
    late.start()
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if "step 1/" in line:
            process.send_signal(signal.SIGINT)
        if "stopping after a checkpoint" in line:
            (workdir / ASKED).touch()
            break
    late.cancel()
    stopped = finish(process, workdir, timeout)
    return replace(stopped, output="".join(printed) + stopped.output)


def run(
    manifest: Path, workdir: Path, *overrides: str, flags: tuple[str, ...] = (), **environ: str
) -> Finished:
    """A run from start to end, whatever the end."""
    return finish(start(manifest, workdir, *overrides, flags=flags, **environ), workdir)


def succeed(
    manifest: Path, workdir: Path, *overrides: str, flags: tuple[str, ...] = (), **environ: str
) -> Finished:
    """A run that must end well."""
    finished = run(manifest, workdir, *overrides, flags=flags, **environ)
    assert finished.code == 0, finished.output[-4000:]
    return finished


def imitate(example: Path, folder: Path, steps: int) -> Finished:
    """`steps` steps of an example's fine-tuning, with the last checkpoint alone."""
    sets = (f"spec.steps={steps}", f"spec.checkpoint.everySteps={steps}")
    return succeed(example / "sft.yaml", folder, *sets)


def improve_by_grpo(example: Path, imitated: Finished, folder: Path, steps: int) -> Finished:
    """`steps` steps of an example's GRPO, evaluated before the first and after the last."""
    sets = (f"spec.steps={steps}", f"spec.evaluation.everySteps={steps}")
    return succeed(example / "grpo.yaml", folder, f"spec.model.policy={imitated.workdir / 'policy'}", *sets)
