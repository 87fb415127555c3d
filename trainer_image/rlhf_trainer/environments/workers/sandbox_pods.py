"""Claims pods of `spec.sandbox` for worker processes, which have neither a network nor the key: a connection to the
socket here is that to a pod, once one is free. Its end is the pod's, whoever dies. Imports no torch.
"""

import asyncio
import json
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rlhf_api.contract.proof import PROOF_BYTES, key_of, new_nonce
from rlhf_api.contract.sandbox_server import keep_alive

from ..episode_sandbox import SOCKET

log = logging.getLogger(__name__)

CONNECT_SECONDS, SIGN_SECONDS, AVOID_SECONDS, LOOK_SECONDS = 5.0, 0.5, 5.0, 0.1
"""Deadline of a claim; interval of signs to who waits for one, and of looks for a free pod; time for which a pod that
did not answer is left alone; interval of looks for the cause of a pod's end."""
MOST_CONNECTIONS = 4096
"""From workers at once: each is an open file of this process."""
_PIECE = 64 << 10
CAUSE_SECONDS = 15.0
"""Time in which it is known why a pod has ended: its kubelet tells the API server, and the operator the trainer."""
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Sandboxes(NamedTuple):
    """Pods as the trainer knows them: URLs of those that serve, by their uids; uids of those that have ended by what
    their commands took."""

    addresses: Mapping[str, str]
    exhausted: frozenset[str] = frozenset()


class _Claimed(NamedTuple):
    uid: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class SandboxPods:
    """On one event loop. A pod has one episode, so each is asked once."""

    def __init__(
        self,
        token: str,
        seconds: float,
        pods: Callable[[], Sandboxes],
        most: Callable[[], int],
    ) -> None:
        """`token`: of sandboxes; `seconds`: the longest time in which no pod comes; `pods`: those that
        there are now; `most`: number of pods that the workers may hold now."""
        self._token, self._seconds, self._pods, self._most = token, seconds, pods, most
        self._tried, self._avoided = set[str](), dict[str, float]()
        self._present, self._changed = frozenset[str](), time.monotonic()
        """Uids of the pods there were at the last look, and when they changed, or one was claimed."""
        self._connections = self._held = 0
        self._folder = tempfile.TemporaryDirectory()

    async def start(self) -> None:
        """Opens the socket, for the workers that start from now on."""
        path = str(Path(self._folder.name, "claims"))
        self._server = await asyncio.start_unix_server(self._serve, path)
        os.environ[SOCKET] = path

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod: _Claimed | None = None
        began = time.monotonic()
        self._connections += 1
        try:
            if self._connections > MOST_CONNECTIONS:
                _send(
                    writer, {"error": f"there are {MOST_CONNECTIONS} sandboxes, open and waited for, already"}
                )
                return
            while pod is None and not reader.at_eof():
                pod = await self._claim_free()
                if pod is not None or time.monotonic() > max(began, self._changed) + self._seconds:
                    break
                _send(writer, {"waits": True})
                await writer.drain()
                await asyncio.sleep(SIGN_SECONDS)
            if pod is None:
                reason = f"no sandbox's pod was free for {self._seconds:g} s (spec.sandbox)"
                if self._held >= (most := self._most()):
                    reason = f"this process has as many sandboxes as it may, {most}, one for each episode"
                _send(writer, {"error": reason})
                return
            _send(writer, {"claimed": True})
            ways = ((reader, pod.writer), (pod.reader, writer))
            ends = [asyncio.ensure_future(_copy(*way)) for way in ways]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not reader.at_eof() and await self._was_exhausted(pod.uid, reader):
                _send(writer, {"exhausted": True})
            for each in ends:
                each.cancel()
        except (ConnectionError, asyncio.CancelledError):  # the worker has left, or this process ends
            pass
        finally:
            self._connections -= 1
            self._held -= pod is not None
            for end in filter(None, (writer, pod and pod.writer)):
                end.close()

    async def _was_exhausted(self, uid: str, reader: asyncio.StreamReader) -> bool:
        """True of a pod that ended by what its commands took; waits until it is known, while the worker does."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while uid in self._pods().addresses and time.monotonic() < deadline and not reader.at_eof():
            await asyncio.sleep(LOOK_SECONDS)
        return uid in self._pods().exhausted

    async def _claim_free(self) -> _Claimed | None:
        """A pod that was free, unless none was there, or the workers hold as many as they may."""
        if self._held >= self._most():
            return None
        self._held += 1
        pod = None
        try:
            pod = await self._claim_any()
        finally:
            self._held -= pod is None
        return pod

    async def _claim_any(self) -> _Claimed | None:
        while (uid := self._choose()) is not None:
            self._tried.add(uid)
            try:
                pod = await _claim(self._pods().addresses[uid], self._token)
            except (OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
                log.warning("a sandbox's pod did not answer: %s", error or type(error).__name__)
                self._tried.discard(uid)
                self._avoided[uid] = time.monotonic() + AVOID_SECONDS
                continue
            if pod is not None:
                self._changed = time.monotonic()
                return _Claimed(uid, *pod)
        return None

    def _choose(self) -> str | None:
        """Any one, as those who claim in other processes choose too."""
        now, present = time.monotonic(), frozenset(self._pods().addresses)
        if present != self._present:
            self._present, self._changed = present, now
        self._tried &= present
        self._avoided = {uid: until for uid, until in self._avoided.items() if now < until}
        free = sorted(present - self._tried - self._avoided.keys())
        return random.choice(free) if free else None


async def _claim(address: str, token: str) -> Pair | None:
    """A connection to a pod that is ours now; None where it has an episode already. Raises OSError, TimeoutError and
    ValueError."""
    at, nonce = urlsplit(address), new_nonce()
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=PROOF_BYTES)
        claimed = False
        try:
            keep_alive(writer.get_extra_info("socket"))
            _send(writer, {"nonce": nonce})
            key = key_of(token, address, nonce, await reader.readline())
            if key is None:
                raise OSError(f"{address}: what answers there is no sandbox of this job")
            _send(writer, {"key": key})
            claimed = json.loads(await reader.readline())["claimed"] is True
        finally:
            if not claimed:
                writer.close()
    return (reader, writer) if claimed else None


def _send(writer: asyncio.StreamWriter, message: Mapping[str, object]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
