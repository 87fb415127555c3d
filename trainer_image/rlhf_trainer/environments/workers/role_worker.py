"""A worker in a process of the role of environments, over a connection of its own."""

import asyncio
import json
from collections.abc import Mapping
from itertools import count
from typing import Any, Self

import aiohttp

from rlhf_api.contract.run import Member
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.environment import Environment

from ...process.process_groups import LONGEST_LINE
from ..adapter import Unfit
from .interface import HEARTBEAT_SECONDS, WORKER_ROUTE, WorkerEnded
from .replies import check_reply

CONNECT_SECONDS = 5.0
"""Deadline of a process of the role to take a connection."""


class RoleWorker:
    """A worker in a process of the role. Where the connection ends by itself, the calls under way may be what has
    ended it, such as by the pod's memory: where that comes again they are suspected, and the one that comes alone is
    blamed."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, member: Member, *, one_by_one: bool) -> None:
        self.member, self.one_by_one, self.episodes = member, one_by_one, 0
        self.schemas: list[dict[str, Any]] = []
        self._socket, self._numbers, self._ended = socket, count(), ""
        self._replies = dict[int, asyncio.Future[dict[str, Any]]]()
        self._reading: asyncio.Future[None] | None = None

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
        """Sends a call and waits for the reply; the process there keeps the deadline. Raises WorkerEnded."""
        if self._ended:
            raise WorkerEnded(self._ended, blamed=False)
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            sent = {"id": number, "seconds": seconds, "call": message}
            await self._socket.send_str(json.dumps(sent, separators=(",", ":")))
            answer: dict[str, Any] = await reply
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

    async def end(self, reason: str) -> None:
        """Closes the connection, which ends the worker."""
        self._fail(WorkerEnded(self._ended or reason, blamed=False))
        if self._reading is not None:
            self._reading.cancel()
        await self._socket.close()

    async def _get_ready(self, section: Environment) -> None:
        try:
            begin = dict(await self._socket.receive_json())
            self.schemas = [dict(schema) for schema in begin.get("schemas", ())]
        except (ValueError, TypeError) as error:  # closed, or no message of ours
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
        except (ValueError, KeyError, TypeError, AttributeError):
            reason = f"{self.member.name} sent what is no reply"
        self._fail(
            WorkerEnded(
                self._ended or reason,
                blamed=self.one_by_one,
                suspected=not self.one_by_one,
                unreachable=True,
            )
        )
        await self._socket.close()

    def _take(self, reply: Mapping[str, Any]) -> None:
        future = self._replies.get(reply["id"])
        if "ended" in reply:
            reason = str(reply["ended"])
            self._ended = self._ended or reason
            error = WorkerEnded(reason, blamed=reply["blamed"] is True, suspected=reply["suspected"] is True)
            if future is not None and not future.done():
                future.set_exception(error)
        elif future is not None and not future.done():
            future.set_result(dict(reply["reply"]))

    def _fail(self, error: WorkerEnded) -> None:
        self._ended = str(error)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(error)
