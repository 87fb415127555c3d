"""Pool of worker processes of environments, each with many episodes; calls from one event loop."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Self

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.interpreter import ISOLATED
from rlhf_api.host.tasks import end_all
from rlhf_api.sections.environment import Environment

from ...process import private_processes, process_groups
from ...process.limits import Limits
from ...process.syscall_filter import filter_pipe
from ..confinement import PROCESSES, excess_of, privacy_of
from .interface import WorkerEnded
from .interpreter import check_interpreter
from .starting import Starting

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""Interval at which the end of a process is noticed that has left others behind."""
SAME_HASHES = {"PYTHONHASHSEED": "0"}
"""One order of sets of texts in all workers, so that an episode that another plays again goes as before."""
GRACE_SECONDS = 5.0
"""Time after turnSeconds in which a worker of programs, which end alone, replies that one was too late."""
_NEEDS = "needs a sandbox, and none can be made here"
_REMEDY = "allow user namespaces to this user (in a pod: by the template in docs/guides/environments.md)"


class Worker:
    """One process. A class without coroutines gets one call at a time, so that each has its whole time; so does any
    class `one_by_one`, so that it is known which call ends the process."""

    def __init__(self, process: asyncio.subprocess.Process, *, one_by_one: bool = False) -> None:
        self._process, self._numbers, self._one_by_one = process, count(), one_by_one
        self._replies = dict[int, asyncio.Future[dict[str, Any]]]()
        self._waits = dict[int, Callable[[float], None]]()
        """Called with the seconds for which a call under way has waited for others."""
        self._turns: asyncio.Lock | None = None
        self._ended = ""
        self._reading: asyncio.Future[None] | None = None
        self._watching: asyncio.Future[None] | None = None
        self.episodes = 0
        """Number of episodes that live in it."""
        self.schemas: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, section: Environment, *, one_by_one: bool = False, is_private: bool = True) -> Self:
        """`is_private`: in namespaces of its own. Raises InvalidJob where the class cannot be imported or is no
        environment, WorkerEnded where the process ends over it."""
        worker = cls(await _start_process(section, is_private=is_private), one_by_one=one_by_one)
        try:
            await worker._get_ready(section.field)
        except BaseException:
            await worker.end("it did not start")
            raise
        first = private_processes.first_inside(worker.pid) if is_private and section.path else 0
        worker._reading = asyncio.ensure_future(worker._read())
        worker._watching = asyncio.ensure_future(worker._watch(section, first))
        return worker

    @property
    def lives(self) -> bool:
        return not self._ended and self._process.returncode is None

    @property
    def is_closed(self) -> bool:
        return not self.lives

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(
        self, message: Mapping[str, Any], seconds: float, on_wait: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Sends a call and waits for the reply. Raises WorkerEnded: a worker that takes longer is killed. The time in
        which the call waits for others does not count; `on_wait` is called again and again meanwhile."""
        if self._turns is None:
            return await self._call(message, seconds, on_wait)
        async with self._turns:
            return await self._call(message, seconds, on_wait)

    async def end(self, reason: str) -> None:
        """Kills the process and its children."""
        self._ended = self._ended or reason
        await process_groups.end(self._process)
        for task in filter(None, (self._reading, self._watching)):
            task.cancel()
        self._fail(blamed=False)

    async def _call(
        self, message: Mapping[str, Any], seconds: float, on_wait: Callable[[], None]
    ) -> dict[str, Any]:
        if not self.lives:
            raise WorkerEnded(self._ended or "the environment's process has ended", blamed=False)
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        stdin = self._process.stdin
        assert stdin is not None
        call = {"id": number, "seconds": seconds, **message}
        try:
            stdin.write(json.dumps(call, separators=(",", ":")).encode() + b"\n")
            async with asyncio.timeout(seconds) as timeout:

                def extend(waited: float) -> None:
                    if not timeout.expired():
                        timeout.reschedule((timeout.when() or 0.0) + waited)
                        on_wait()

                self._waits[number] = extend
                answer: dict[str, Any] = await reply
        except TimeoutError:
            self._replies.pop(number, None)
            reason = f"{message['do']} took longer than {seconds:g} s (spec.environment.turnSeconds)"
            await self.end(f"the environment's process was ended since another {reason}")
            raise WorkerEnded(reason, blamed=True) from None
        finally:
            self._replies.pop(number, None)
            self._waits.pop(number, None)
        if answer.pop("limit", False):
            await self.end(f"the environment's process was ended since another {answer['failed']}")
            raise WorkerEnded(answer["failed"], blamed=True)
        return answer

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        reason = "the environment's process wrote to the pipe of its replies"
        try:
            while (line := await stdout.readline()).endswith(b"\n"):
                reply = json.loads(line)
                number = reply.pop("id")
                if "waited" in reply:
                    if (extend := self._waits.get(number)) is not None:
                        extend(float(reply["waited"]))
                    continue
                float(reply["seconds"])
                future = self._replies.get(number)
                if future is not None and not future.done():
                    future.set_result(reply)
            reason = f"the environment's process {private_processes.how_ended(await self._process.wait())}"
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):  # no line of ours
            pass
        by_itself, self._ended = not self._ended, self._ended or reason
        self._fail(blamed=by_itself)
        await process_groups.end(self._process)

    async def _watch(self, section: Environment, first: int) -> None:
        """Kills what the process leaves when it ends: a child that it forked would hold the pipe of replies open. Ends
        it where it and what it starts take too much; `first`: of its namespace of processes, 0 for none of its own."""
        while self._process.returncode is None and not self._ended:
            await asyncio.sleep(POLL_SECONDS)
            if first and (reason := excess_of(section, first)):
                self._ended = self._ended or f"the environment's process {reason}"
                self._fail(blamed=True)
        await process_groups.end(self._process)

    def _fail(self, *, blamed: bool) -> None:
        waiting = [future for future in self._replies.values() if not future.done()]
        alone = len(waiting) == 1
        for future in waiting:
            future.set_exception(
                WorkerEnded(self._ended, blamed=blamed and alone, suspected=blamed and not alone)
            )

    async def _get_ready(self, field: str) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(process_groups.START_SECONDS):
                line = await stdout.readline()
        except TimeoutError:
            raise WorkerEnded(
                f"it was not imported within {process_groups.START_SECONDS:g} s", blamed=True
            ) from None
        if not line.endswith(b"\n"):
            how = private_processes.how_ended(await self._process.wait())
            raise WorkerEnded(f"the environment's process {how} while it was imported", blamed=True)
        reply = json.loads(line)
        if "invalid" in reply:
            raise InvalidJob([Problem(field, str(reply["invalid"]))])
        self.schemas = reply["schemas"]
        self._turns = asyncio.Lock() if reply["sync"] or self._one_by_one else None


async def _start_process(section: Environment, *, is_private: bool) -> asyncio.subprocess.Process:
    """A worker's process. One of programs only starts them, each with processes and limits of its own."""
    environ = SAME_HASHES | private_processes.variables_for(network=section.network)
    if section.python is not None:
        environ = {name: value for name, value in environ.items() if name not in ISOLATED}
    command = (
        "rlhf_trainer.environments.workers.worker",
        "agents" if section.asks_policy else "class",
        section.model_dump_json(by_alias=True),
    )
    if not is_private:
        return await process_groups.start_worker(*command, environ=environ, python=section.python)
    privacy = privacy_of(section, network=section.network, own_processes=section.program is None)
    limits = Limits(processes=PROCESSES if section.program is None else None)
    with filter_pipe(makes_sandboxes=True) as rules:
        within = (*privacy.command(rules), *limits.command())
        return await process_groups.start_worker(
            *command, environ=environ, within=within, pass_fds=(rules,), python=section.python
        )


async def start_first(section: Environment) -> tuple[Worker, bool]:
    """The first worker of an environment, which imports the class, and whether workers have namespaces of their own.
    Raises InvalidJob where the class cannot be imported or is none, a program cannot have such namespaces, or
    `writable` names no folder, RuntimeError if the process ends over it."""
    await asyncio.to_thread(check_interpreter, section)
    for folder in section.writable:
        if not Path(folder).is_dir():
            message = f"must be folders that are there; {folder!r} is none"
            raise InvalidJob([Problem("spec.environment.writable", message)])
    if reason := await private_processes.why_impossible():
        if section.asks_policy:
            raise InvalidJob([Problem(section.field, f"{_NEEDS}: {reason}; {_REMEDY}")])
        log.warning("environments see this pod's processes, keys and network: %s", reason)
    is_private = not reason
    try:
        return await Worker.start(section, is_private=is_private), is_private
    except WorkerEnded as error:
        named = section.path or section.program
        raise RuntimeError(f"{section.field}: {named!r} was not imported: {error}") from None


class WorkerPool:
    """The workers of an environment, started on demand: a first one by `start`, which imports the class."""

    def __init__(self, section: Environment) -> None:
        self._section, self._is_private = section, True
        self._workers = Starting(self._start_worker, is_single=False)
        self._one_by_one = Starting(self._start_one_by_one, is_single=True)
        self._keeping: asyncio.Future[None] | None = None
        self.schemas: list[dict[str, Any]] = []
        """JSON schemas of the class's tools."""

    async def start(self) -> None:
        """Raises as `start_first`."""
        first, self._is_private = await start_first(self._section)
        self._workers.workers, self.schemas = [first], first.schemas
        self._keeping = asyncio.ensure_future(self._keep())

    async def free(self, *, one_by_one: bool = False) -> Worker:
        """The worker with the fewest episodes, maybe a new one; or the one whose calls come `one_by_one`, beside the
        others. Raises as `Worker.start`."""
        worker = await (self._one_by_one if one_by_one else self._workers).free()
        assert worker is not None, "the first one can always be started"
        return worker

    async def _start_worker(self) -> Worker | None:
        if self._workers.count > self._section.workers:  # with this one
            return None
        return await Worker.start(self._section, is_private=self._is_private)

    async def _start_one_by_one(self) -> Worker | None:
        if self._one_by_one.count > 1:
            return None
        return await Worker.start(self._section, one_by_one=True, is_private=self._is_private)

    async def close(self) -> None:
        """Kills all workers."""
        if self._keeping is not None:
            await end_all([self._keeping])

    async def _keep(self) -> None:
        """Kills the workers when the event loop's tasks are cancelled at its end, as this one then is."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.gather(
                *(each.end("the run has ended") for each in (self._workers, self._one_by_one))
            )
