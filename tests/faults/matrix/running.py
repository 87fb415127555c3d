"""One job that fails again and again: `rlhf run` with two ranks, two vLLM servers, a reward, a reference and S3."""

import datetime
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from tests.faults.matrix.account import Prompts, Tokens, newest, of_processes
from tests.faults.matrix.cells import GPU, LOCAL, PAUSE_SECONDS, STALENESS, Cell, Mode
from tests.faults.matrix.inject import find, inject, slowed
from tests.faults.matrix.kills import SLOWED, SPOT, SPOT_SECONDS
from tests.faults.matrix.manifest import PER_STEP, document
from tests.faults.matrix.meeting import READY_SECONDS, Meeting
from tests.faults.matrix.responses import Responses
from tests.support import rlhf
from tests.support.servers.outage import Proxy, proxy
from tests.support.servers.seaweed import Server
from tests.support.tiny.models import tiny_model

STEP_SECONDS = 180.0
"""Deadline of the step after a fault."""
_CUT = re.compile(r"^\d\d:\d\d:\d\d |; see \S+")
"""Of a line of `rlhf run`: when it was, and where the log is."""


class NoStep(RuntimeError):
    """The job made no step in time."""


@dataclass(frozen=True)
class Outcome:
    """Effects of a fault. `seconds` from the fault to the end of the next training step; `again`: tokens that were
    generated and not trained on; `events`: lines of `rlhf run` since then; `end`: how the job itself ended, if it did,
    after which it was resumed. `begun`: responses of which the newest snapshot before the fault had a part; `gone`:
    responses, begun or whole, that such a snapshot had, and that are not what was trained on nor in the newest one
    after it; `old`: tokens that were trained on beyond the bound. `told`: seconds from the fault until the status of a
    cluster's job has a step of after it, and `steps`: those that were made by then."""

    seconds: float
    lost: int = 0
    twice: int = 0
    again: int = 0
    events: Sequence[str] = ()
    end: str = ""
    begun: int = 0
    gone: int = 0
    old: int = 0
    told: float = 0.0
    steps: int = 0


@dataclass(frozen=True)
class Spell:
    """A time of the job with or without kills: its `seconds`, the `samples` that were trained on, and as of Outcome the
    rest."""

    seconds: float
    samples: int
    kills: int
    lost: int
    twice: int
    old: int


class Running:
    """The job, with its faults one after another."""

    def __init__(self, mode: Mode, workdir: Path, manifest: Path, store: Server, way: Proxy) -> None:
        self._workdir, self._manifest, self._store, self._way = workdir, manifest, store, way
        self._environ = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{way.port}",
            "RLHF_FAULTS": "tests.faults.matrix.hook:wait_at_point",
            **({"CUDA_VISIBLE_DEVICES": "0,0,0"} if mode == GPU else {}),
        }
        url = store.address.url(mode.replace(" ", "-"))
        self._prompts, self._responses = Prompts(url, PER_STEP), Responses(url, STALENESS[mode])
        self._tokens = Tokens(workdir, partial(of_processes, workdir))
        self._lines: list[str] = []
        self._reported = 0
        self._meeting = Meeting(workdir, self._wait_for)
        self._process = self._start()
        self._wait_for((workdir / "run.json").exists, STEP_SECONDS)

    def strike(self, cell: Cell) -> Outcome:
        """One cell, from a step at which every role is ready to the next such step.

        Raises:
            NoStep: the job did not reach the moment, or made no step within STEP_SECONDS after it.
        """
        before = self._quiet()
        generated = self._tokens.generated()
        outcome = self._strike(cell, None)
        after = self._quiet()
        again = self._tokens.generated() - generated - self._tokens.trained(before, after)
        return self._checked(replace(outcome, again=again))

    def kill(self, cell: Cell, after: float | None) -> Outcome:
        """The same as soon as the victim's role is ready, whoever else is on the way; `after` so many seconds of a step
        instead of at the cell's moment. Tokens are not counted."""
        self._quiet(LOCAL[cell.victim].name.partition("-")[0])
        outcome = self._strike(cell, after)
        self._quiet("trainer")
        return self._checked(outcome)

    def spell(self, seconds: float, *, spot: bool) -> Spell:
        """So many seconds from a step at which all are ready; with `spot`, one generator after another is killed, one
        every SPOT_SECONDS, whoever is still starting; one that is not there has a minute more."""
        before, kills = self._quiet(), 0
        self._meeting.release()
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            if spot:
                with suppress(LookupError):
                    find(self._workdir, SPOT[kills % len(SPOT)]).kill()
                    kills += 1
            self._wait_until(time.monotonic() + min(left, SPOT_SECONDS))
        self._meeting.reach("trainer-0 step")
        took, steps = time.monotonic() - began, newest(self._workdir) - before
        outcome = self._checked(Outcome(took))
        return Spell(round(took, 1), steps * PER_STEP, kills, outcome.lost, outcome.twice, outcome.old)

    def slowed(self) -> AbstractContextManager[None]:
        """SLOWED runs for a share of the time alone, from the first step at which all are ready."""
        self._quiet()
        self._meeting.release()
        return slowed(self._workdir, SLOWED)

    def _strike(self, cell: Cell, after: float | None) -> Outcome:
        """The fault, and the step after it."""
        self._meeting.release()
        if after is None:
            self._meeting.reach(cell.point)
        else:
            time.sleep(after)
        self._tokens.generated()
        begun = self._responses.keep()
        # Ahead of training a step may be done but for its last lines, whoever dies now.
        step, self._reported = newest(self._workdir) + bool(STALENESS[cell.mode]), len(self._lines)
        began = time.monotonic()
        over = inject(cell, self._workdir, self._store, self._way)
        self._meeting.release()
        end = self._wait_for(lambda: newest(self._workdir) > step, STEP_SECONDS)
        seconds = time.monotonic() - began
        if over is not None:
            over.join(2 * PAUSE_SECONDS)
        if cell.ends:  # perhaps nobody had noticed before the step was done
            name = LOCAL[cell.victim].name
            started = (f" {name} started", f" {name} started again")
            end += self._wait_for(
                lambda: any(line.endswith(started) for line in self._lines[self._reported :]), STEP_SECONDS
            )
        return Outcome(round(seconds, 2), end=end, begun=begun)

    def _checked(self, outcome: Outcome) -> Outcome:
        """With the events since the fault and what the store says, while the job is held at a step; it goes on then."""
        events = [
            _CUT.sub("", line) for line in self._lines[self._reported :] if not re.search(r" step \d+/", line)
        ]
        events = [event for event in events if "checkpoint of step" not in event]
        (lost, twice), (missing, old) = self._prompts.check(), self._responses.check()
        self._meeting.release()
        return replace(outcome, lost=lost, twice=twice, gone=missing, old=old, events=events)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)

    def _start(self, *flags: str) -> "subprocess.Popen[str]":
        process = rlhf.start(self._manifest, self._workdir, flags=flags, **self._environ)

        def follow() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self._lines.append(line.rstrip("\n"))

        threading.Thread(target=follow, daemon=True).start()
        return process

    def _quiet(self, role: str | None = None) -> int:
        """Holds the job at the beginning of a step at which all are ready, or those of one role; returns the number of
        steps done."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            self._meeting.reach("trainer-0 step")
            if self._ready(role):
                return newest(self._workdir)
            if time.monotonic() > deadline:
                raise NoStep(
                    f"not every {role or 'role'} is ready after {READY_SECONDS:g} s: {self._lines[-5:]}"
                )
            self._meeting.release()

    def _ready(self, role: str | None) -> bool:
        status = json.loads((self._workdir / "status.json").read_text())
        members, roles = status["generators"], status["roles"]
        checked_roles = roles.values() if role is None else [roles[role]]
        return all(each["ready"] == each["desired"] for each in checked_roles) and (
            role not in (None, "generator")
            or [member["ready"] for member in members] == [True] * roles["generator"]["desired"]
        )

    def _wait_until(self, then: float) -> None:
        self._wait_for(lambda: time.monotonic() >= then, SPOT_SECONDS + STEP_SECONDS)

    def _wait_for(self, happened: Callable[[], bool], seconds: float) -> str:
        """Waits, and resumes the job where it ends meanwhile; returns how it ended, if it did."""
        deadline, end = time.monotonic() + seconds, ""
        while not happened():
            if time.monotonic() > deadline:
                raise NoStep(f"nothing within {seconds:g} s: {self._lines[-5:]}")
            if (code := self._process.poll()) is not None:
                end = f"exit code {code}"
                if not newest(self._workdir):
                    raise NoStep(f"the job ended before its first step, {end}: {self._lines[-5:]}")
                self._process = self._start("--resume")
            time.sleep(0.02)
        return end


@contextmanager
def running(
    mode: Mode, folder: Path, store: Server, *, begun: bool = False, generators: int = 2
) -> Iterator[Running]:
    """The job in `folder`, its checkpoints in `store` behind a proxy; it is stopped afterwards. `begun`: its generators
    are slower than its trainer, so that snapshots hold responses that are only begun."""
    folder.mkdir(parents=True, exist_ok=True)
    policy = tiny_model(folder / "policy", tie=False, seed=1, head_dim=64 if mode == GPU else 32)
    port = int(store.address.endpoint.rsplit(":", 1)[1])
    with proxy(port) as way, patch.dict(os.environ, store.address.environment):
        manifest = folder / "job.yaml"
        made = document(mode, folder, policy, store, begun=begun, generators=generators)
        manifest.write_text(json.dumps(made))
        job = Running(mode, folder / "run", manifest, store, way)
        try:
            yield job
        finally:
            job.stop()


def note(cell: Cell, result: Mapping[str, object], file: Path) -> None:
    """Adds a line to the results."""
    with file.open("a") as out:
        out.write(json.dumps({**vars(cell), **result, **here()}) + "\n")


def here() -> dict[str, object]:
    """Date of a result, and the number of cores."""
    today = datetime.datetime.now(datetime.UTC).date()
    return {"date": str(today), "cores": len(os.sched_getaffinity(0))}
