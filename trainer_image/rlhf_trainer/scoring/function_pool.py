"""Process pool for reward functions: a call that hangs or crashes fails its response, not the server."""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Self

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.reward import ScoreFunction

from ..process import process_groups
from ..process.timeouts import Timeouts
from ..process.usage import usage
from .samples import CallFailure, Failure, Result, Sample, even_calls, failed


async def start(where: str, entry: ScoreFunction) -> "FunctionPool":
    """The pool of `entry.function`, imported in a first process. Raises InvalidJob where it cannot be imported."""
    assert entry.function is not None, "an entry of this kind"
    pool = FunctionPool(
        f"{where}.function",
        entry.function,
        failure_score=entry.failure_score,
        concurrency=entry.concurrency,
        timeout=entry.timeout_seconds,
    )
    await pool.start()
    return pool


class FunctionPool:
    """Up to `concurrency` worker processes of a function, started on demand. Implements `Scorer`.

    A call that exceeds its timeout kills its process and that process's children; the next call starts another. Where a
    call for several responses fails, each of them has a CallFailure, so that the others get their scores. A response
    for which the function computes until its timeout scores `failure_score`, if others end in time (`Timeouts`); one
    for which it waits, for a service or for a CPU, has no score.
    """

    def __init__(
        self, where: str, path: str, *, concurrency: int, timeout: float, failure_score: float = 0.0
    ) -> None:
        self.concurrency = concurrency
        self._failure_score, self._timeouts = failure_score, Timeouts()
        self._where, self._path, self._timeout = where, path, timeout
        self._idle: list[_Worker] = []

    def size(self, count: int) -> int:
        """Splits a batch evenly into as many calls as there are processes."""
        return even_calls(count, self.concurrency)

    async def start(self) -> None:
        """Imports the function in a first process. Raises InvalidJob where it cannot be imported, and RuntimeError if
        the process ends over it."""
        try:
            self._idle.append(await self._started())
        except _Ended as error:
            raise RuntimeError(f"{self._where}: {self._path!r} was not imported: {error}") from None

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        """One result per sample. Raises InvalidJob if the function raises, or returns anything but a finite number for
        each response or each of its tokens."""
        result = await self._call(samples)
        if not isinstance(result, Failure):
            return result
        return [CallFailure(result.reason)] * len(samples) if len(samples) > 1 else [result]

    async def _call(self, samples: Sequence[Sample]) -> list[Result] | Failure:
        try:
            worker = await self._free()
        except _Ended as error:
            return failed(str(error))
        began = time.monotonic()
        try:
            tokens = None if samples[0].tokens is None else [s.tokens for s in samples]
            texts = [[s.prompt for s in samples], [s.response for s in samples]]
            message = [*texts, [s.row for s in samples], tokens]
            reply = await worker.ask(message, self._timeout)
        except _TimedOut as error:
            if len(samples) == 1 and error.computing and self._timeouts.is_of_response(began):
                return [self._failure_score]
            return failed(str(error))
        except _Ended as error:
            return failed(str(error))
        finally:
            if worker.asking:  # it has not replied and gets no further calls
                await worker.end()
            else:
                self._idle.append(worker)
        self._raise_if_invalid(reply)
        self._timeouts.record_end()
        scores = reply.get("scores")
        if isinstance(scores, list) and len(scores) == len(samples):
            return scores
        return failed(str(reply.get("failed") or f"the function's process replied {reply}"))

    async def _free(self) -> "_Worker":
        """A process without a call: one that waits for the next, unless somebody has killed it, or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.lives:
                return worker
            await worker.end()
        return await self._started()

    async def _started(self) -> "_Worker":
        worker = await _Worker.start(self._where, self._path)
        try:
            self._raise_if_invalid(await worker.ask(None, process_groups.START_SECONDS))
        except BaseException:
            await worker.end()
            raise
        return worker

    def _raise_if_invalid(self, reply: dict[str, Any]) -> None:
        if "invalid" in reply:
            raise InvalidJob([Problem(self._where, str(reply["invalid"]))])


class _Ended(Exception):
    """The process ended, or was killed, before it replied."""


class _TimedOut(_Ended):
    """The process took too long; `computing`: it used a CPU for at least half of the second half of its time."""

    def __init__(self, reason: str, *, computing: bool) -> None:
        super().__init__(reason)
        self.computing = computing


class _Worker:
    """One process; `asking` while a reply is pending."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self.asking = process, True

    @classmethod
    async def start(cls, where: str, path: str) -> Self:
        environ = {name: value for name, value in os.environ.items() if name != "RLHF_TOKEN"}
        return cls(
            await process_groups.start_worker("rlhf_trainer.scoring.worker", where, path, environ=environ)
        )

    async def ask(self, message: Any, seconds: float) -> dict[str, Any]:
        """Sends a message (None: nothing) and waits for the reply. Raises _Ended, on timeout _TimedOut."""
        self.asking = True
        exchange = asyncio.ensure_future(self._exchange(message))
        try:
            if not (await asyncio.wait([exchange], timeout=seconds / 2))[0]:
                before = usage([self._process.pid]).computed
                if not (await asyncio.wait([exchange], timeout=seconds / 2))[0]:
                    computing = usage([self._process.pid]).computed - before >= seconds / 4
                    raise _TimedOut(f"the function took longer than {seconds:g} s", computing=computing)
            line = exchange.result()
        except (OSError, ValueError) as error:  # a broken pipe, or a line that is too long
            raise _Ended(f"the function's process cannot be asked: {error}") from None
        finally:
            exchange.cancel()
        reply = json.loads(line)
        assert isinstance(reply, dict), "our own worker writes objects"
        self.asking = False
        return reply

    async def _exchange(self, message: Any) -> bytes:
        """The reply's line. Raises _Ended where the process ends before it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if message is not None:
            stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            await stdin.drain()
        line = await stdout.readline()
        if not line.endswith(b"\n"):
            raise _Ended(f"the function's process {process_groups.how_ended(await self._process.wait())}")
        return line

    @property
    def lives(self) -> bool:
        return self._process.returncode is None

    async def end(self) -> None:
        """Kills the process and its children."""
        await process_groups.end(self._process)
