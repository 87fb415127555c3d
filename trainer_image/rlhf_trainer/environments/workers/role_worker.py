"""A worker in a process of the role of environments, over a connection of its own."""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Self

import aiohttp

from rlhf_api.contract.run import Member
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.environment import Environment

from ...process.process_groups import LONGEST_LINE, START_SECONDS
from ..adapter import Unfit
from .interface import HEARTBEAT_SECONDS, WORKER_ROUTE, WorkerEnded
from .replies import check_reply
from .sandbox_pods import Sandboxes

CONNECT_SECONDS = 5.0
"""Deadline of a process of the role to take a connection."""
REPLY_SECONDS = 30.0
"""Time beyond its own deadlines in which it sends what they are the deadlines of."""
_GARBAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors over what is no message of ours; the last one is the JSON reader's, of many brackets."""


class RoleWorker:
    """A worker in a process of the role. Where the connection ends by itself, the calls under way may be what has
    ended it, such as by the pod's memory: where that comes again they are suspected, and the one that comes alone is
    blamed."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, member: Member, *, one_by_one: bool) -> None:
        self.member, self.one_by_one, self.episodes = member, one_by_one, 0
        self.schemas: list[dict[str, Any]] = []
        self._socket, self._numbers, self._ended = socket, count(), ""
        self._replies = dict[int, asyncio.Future[dict[str, Any]]]()
        self._replied = time.monotonic()
        """Time of the last reply to a call, or of the last sign that one waits for others."""
        self._reading: asyncio.Future[None] | None = None
        self._sandboxes = Sandboxes({})
        """Those that its process was told of."""

    @classmethod
    async def start(
        cls, session: aiohttp.ClientSession, section: Environment, member: Member, *, one_by_one: bool
    ) -> Self:
        """Raises aiohttp.ClientError, OSError and TimeoutError where the member does not take it, InvalidJob where the
        class cannot be imported there, WorkerEnded where the worker's process ends over it."""
        url = f"{member.address}{WORKER_ROUTE}{'?oneByOne=1' if one_by_one else ''}"
        async with asyncio.timeout(CONNECT_SECONDS):
            socket = await session.ws_connect(url, heartbeat=HEARTBEAT_SECONDS, max_msg_size=LONGEST_LINE)
        worker = cls(socket, member, one_by_one=one_by_one)
        try:
            await worker._get_ready(section)
        except BaseException:
            await socket.close()
            raise
        worker._reading = asyncio.ensure_future(worker._read())
        return worker

    @property
    def lives(self) -> bool:
        return not self._ended

    @property
    def is_closed(self) -> bool:
        """True once its process may have another worker in its place."""
        return self._socket.closed

    async def call(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Sends a call and waits for the reply. The process there keeps the deadline, which begins where another call
        ends; one that replies to none of them in that time is given up. Raises WorkerEnded."""
        if self._ended:
            raise WorkerEnded(self._ended, blamed=False)
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            sent = {"id": number, "seconds": seconds, "call": message}
            await self._socket.send_str(json.dumps(sent, separators=(",", ":")))
            answer = await self._wait_for(reply, seconds + REPLY_SECONDS)
        except ConnectionError:
            await self.end(f"the connection to {self.member.name} ended")
            raise WorkerEnded(self._ended, blamed=False) from None
        finally:
            self._replies.pop(number, None)
        try:
            check_reply(message["do"], answer)
        except Unfit as error:
            return {"error": str(error)}
        return answer

    async def tell_sandboxes(self, sandboxes: Sandboxes) -> None:
        """Tells its process of the sandboxes there are, if that is news."""
        if sandboxes == self._sandboxes:
            return
        self._sandboxes = sandboxes
        news = {"sandboxes": sandboxes.addresses, "exhausted": sorted(sandboxes.exhausted)}
        with suppress(ConnectionError):
            await self._socket.send_str(json.dumps(news, separators=(",", ":")))

    async def end(self, reason: str) -> None:
        """Closes the connection, which ends the worker."""
        self._fail(WorkerEnded(self._ended or reason, blamed=False))
        if self._reading is not None:
            self._reading.cancel()
        await self._socket.close()

    async def _wait_for(self, reply: asyncio.Future[dict[str, Any]], seconds: float) -> dict[str, Any]:
        began = time.monotonic()
        while (left := max(began, self._replied) + seconds - time.monotonic()) > 0:
            if (await asyncio.wait([reply], timeout=left))[0]:
                return reply.result()
        self._lose(f"{self.member.name} replied to no call for {seconds:g} s")
        await self.end("it does not reply")
        return reply.result()

    async def _get_ready(self, section: Environment) -> None:
        try:
            async with asyncio.timeout(START_SECONDS + REPLY_SECONDS):
                begin = dict(await self._socket.receive_json())
            self.schemas = [dict(schema) for schema in begin.get("schemas", ())]
        except _GARBAGE as error:  # or closed
            raise aiohttp.ClientPayloadError(f"{self.member.name} has started no worker: {error}") from None
        if "invalid" in begin:
            raise InvalidJob([Problem(section.field, str(begin["invalid"]))])
        if "schemas" not in begin:
            raise WorkerEnded(str(begin.get("ended")), blamed=True)

    async def _read(self) -> None:
        reason = f"the connection to {self.member.name} ended"
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                self._take(json.loads(message.data))
                if self._ended and all(future.done() for future in self._replies.values()):
                    break
        except _GARBAGE:
            reason = f"{self.member.name} sent what is no reply"
        self._lose(reason)
        await self._socket.close()

    def _take(self, reply: Mapping[str, Any]) -> None:
        future = self._replies.get(reply["id"])
        if "ended" in reply:
            reason = str(reply["ended"])
            self._ended = self._ended or reason
            error = WorkerEnded(reason, blamed=reply["blamed"] is True, suspected=reply["suspected"] is True)
            if future is not None and not future.done():
                future.set_exception(error)
        elif "waits" not in reply and future is not None and not future.done():
            future.set_result(dict(reply["reply"]))
        if future is not None:
            self._replied = time.monotonic()

    def _lose(self, reason: str) -> None:
        """Fails all calls under way, any of which may be why the process is not there."""
        alone = self.one_by_one
        reason = self._ended or reason
        self._fail(WorkerEnded(reason, blamed=alone, suspected=not alone, unreachable=True))

    def _fail(self, error: WorkerEnded) -> None:
        self._ended = str(error)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(error)
