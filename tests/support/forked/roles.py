"""A job's roles as processes that start in a moment: forked from one that has imported everything already."""

import importlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.forked.forks import ended, fork, torchrun
from tests.support.ports import free_port

from rlhf_api.contract.run import CONTROL_MEMBERS, Process, RunConfig, environment
from rlhf_api.roles import HEALTH, Role

TOKEN = "token-of-tests"
READY_S = 300


@dataclass
class Job:
    """A PPO job: reward and reference stay, trainers come and go. `environ` is for the trainers, `generators` are the
    addresses of servers that others started."""

    folder: Path
    spec: Mapping[str, Any]
    environ: Mapping[str, str] = field(default_factory=dict)
    generators: Sequence[str] = ()
    _servers: list[tuple[Process, BaseProcess]] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Iterator["Job"]:
        """Reward and reference answer; they end with the block."""
        file = self._config(self.spec, self.folder / "servers", resume=False)
        try:
            for role in (Role.REWARD, Role.REFERENCE):
                place = Process(role, 0, free_port(), "127.0.0.1", "127.0.0.1:1")
                log = self.folder / f"{place.name}.log"
                self._servers.append((place, start(place, file, log)))
            for place, process in self._servers:
                _wait_for(f"http://127.0.0.1:{place.port}{HEALTH}", process)
            yield self
        finally:
            for _, process in self._servers:
                process.kill()
                process.join(10)

    def train(
        self,
        name: str,
        *,
        ranks: int = 1,
        resume: bool = False,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        timeout: float = 500,
    ) -> list[int]:
        """One gang from start to end in the work directory `name`; the exit codes of its ranks.

        As under torchrun: when one rank fails, the others are killed. A rank killed by a signal has minus its number.
        """
        spec = {**self.spec, **(overrides or {})}
        trainer = {**spec.get("trainer", {}), "processesPerReplica": ranks}
        file = self._config({**spec, "trainer": trainer}, self.folder / name, resume=resume)
        control, log = free_port(), self.folder / f"{name}.log"
        gang = []
        for more in torchrun(ranks):
            master = f"{more['MASTER_ADDR']}:{more['MASTER_PORT']}"
            place = Process(Role.TRAINER, 0, control, "127.0.0.1", master)
            gang.append(start(place, file, log, **{**self.environ, **more, **(environ or {})}))
        over = threading.Event()
        teller = threading.Thread(target=self._tell, args=(control, over))
        teller.start()
        try:
            return ended(gang, timeout, log)
        finally:
            over.set()
            teller.join(10)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def end(self, name: str) -> str:
        """The termination message of a trainer."""
        return (self.folder / f"{name}.end").read_text()

    def _tell(self, port: int, over: threading.Event) -> None:
        """The membership, once the trainer listens."""
        members = [
            {"role": p.role.value, "name": p.name, "uid": p.name, "address": f"http://127.0.0.1:{p.port}"}
            for p, _ in self._servers
        ] + [
            {"role": "generator", "name": f"generator-{i}", "uid": f"generator-{i}", "address": address}
            for i, address in enumerate(self.generators)
        ]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{CONTROL_MEMBERS}",
            json.dumps({"members": members}).encode(),
            {"Authorization": f"Bearer {TOKEN}"},
            method="PUT",
        )
        while not over.is_set():
            with suppress(OSError), urllib.request.urlopen(request, timeout=5):
                return
            over.wait(0.05)

    def _config(self, spec: Mapping[str, Any], workdir: Path, *, resume: bool) -> Path:
        workdir.mkdir(parents=True, exist_ok=True)
        file = workdir / "run.json"
        file.write_text(json.dumps({"job": "chaos", "workdir": str(workdir), "resume": resume, "spec": spec}))
        return file


def start(place: Process, config_file: Path, log: Path, **environ: str) -> BaseProcess:
    config = RunConfig.model_validate_json(config_file.read_bytes())
    end = str(log.with_suffix(".end"))
    variables = environment(config, place, config_file=str(config_file), termination_log=end)
    return fork(_run, place.role.value, log=log, **{**variables, **environ, "RLHF_TOKEN": TOKEN})


def _run(role: str) -> None:
    """In the new process."""
    from rlhf_trainer.process.role import run_role

    run_role(importlib.import_module(f"rlhf_trainer.roles.{role}").run)


def _wait_for(url: str, process: BaseProcess) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.exitcode is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{url} does not answer within {READY_S} s")
