"""Server of the role of environments: starts a worker for each connection, passes calls and replies on, and ends the
worker with the connection. Imports no torch.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from rlhf_api.contract.proof import Prover
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.tasks import end_all
from rlhf_api.roles import HEALTH
from rlhf_api.sections.environment import Environment

from ...dispatch.control import healthy, token_required
from .interface import TRAINER_SECONDS, WORKER_ROUTE, WorkerEnded
from .pool import Worker, start_first
from .sandbox_pods import Sandboxes, SandboxPods
from .worker import LONGEST_CALL

log = logging.getLogger(__name__)


class WorkerServer:
    """At most `workers` connections at once, and one with calls one by one."""

    def __init__(self, section: Environment, sandboxes: tuple[str, float] | None = None) -> None:
        """`sandboxes`: their token, and the longest time in which none comes, in a job that has some."""
        self._section, self._is_private, self._sandboxes = section, True, sandboxes
        self._pods = Sandboxes({})
        """As the trainer has told last."""
        self._spare: Worker | None = None
        """The worker that has shown that the class can be imported, until somebody asks for one."""
        self._open = {False: 0, True: 0}
        """Number of connections, by whether their calls come one by one."""
        self._connections = set[_Connection]()

    def application(self, prover: Prover) -> web.Application:
        """The application. Its start raises as `start_first`."""
        app = web.Application(middlewares=[token_required(prover)])
        app.add_routes([web.get(HEALTH, healthy), web.get(WORKER_ROUTE, self._serve)])
        app.cleanup_ctx.append(self._first_worker)
        return app

    def learn_sandboxes(self, pods: Sandboxes) -> None:
        self._pods = pods

    def _count_episodes(self) -> int:
        """Of the trainer, in all workers here: none has another's sandbox, nor do those of other processes."""
        return sum(len(each.episodes) for each in self._connections)

    async def _first_worker(self, _app: web.Application) -> AsyncIterator[None]:
        if self._sandboxes is not None:
            await SandboxPods(*self._sandboxes, lambda: self._pods, self._count_episodes).start()
        self._spare, self._is_private = await start_first(self._section)
        yield
        if self._spare is not None:
            await self._spare.end("the role has ended")

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        one_by_one = request.query.get("oneByOne") == "1"
        if self._open[one_by_one] >= (1 if one_by_one else self._section.workers):
            raise web.HTTPServiceUnavailable(text="all workers of this process are taken")
        self._open[one_by_one] += 1
        socket = web.WebSocketResponse(heartbeat=TRAINER_SECONDS, max_msg_size=LONGEST_CALL, compress=False)
        connection = _Connection(socket, self.learn_sandboxes)
        starting = asyncio.ensure_future(self._start(one_by_one=one_by_one))
        self._connections.add(connection)
        try:
            await socket.prepare(request)
            await connection.serve(starting)
        finally:
            self._open[one_by_one] -= 1
            self._connections.discard(connection)
            starting.cancel()
            with suppress(asyncio.CancelledError, InvalidJob, WorkerEnded):
                await (await starting).end("its connection was closed")
        return socket

    async def _start(self, *, one_by_one: bool) -> Worker:
        spare = self._spare
        if spare is not None and not one_by_one:
            self._spare = None
            if spare.lives:
                return spare
        return await Worker.start(self._section, one_by_one=one_by_one, is_private=self._is_private)


class _Connection:
    """One worker's; it is read all the time, as signs of life are answered by reading."""

    def __init__(self, socket: web.WebSocketResponse, learn: Callable[[Sandboxes], None]) -> None:
        """`learn`: called with the sandboxes that there are."""
        self._socket, self._learn, self._running = socket, learn, set[asyncio.Task[None]]()
        self.episodes = set[int]()
        """Numbers of those that have begun, and not ended."""

    async def serve(self, starting: "asyncio.Future[Worker]") -> None:
        """Passes calls on until the connection is closed."""
        self._begin(self._tell_start(starting))
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    break
                call = json.loads(message.data)
                if "sandboxes" in call:
                    self._learn(Sandboxes(dict(call["sandboxes"]), frozenset(call["exhausted"])))
                    continue
                if not starting.done():
                    break
                self._begin(self._pass_on(starting.result(), call["id"], call["seconds"], call["call"]))
        except (ValueError, KeyError, TypeError):
            log.warning("a connection is closed: what came is no call")
        finally:
            await end_all(self._running)
            await self._socket.close()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _tell_start(self, starting: "asyncio.Future[Worker]") -> None:
        try:
            worker = await asyncio.shield(starting)
        except InvalidJob as error:
            await self._send({"invalid": error.problems[0].message})
        except WorkerEnded as error:
            await self._send({"ended": str(error)})
        else:
            await self._send({"schemas": worker.schemas})

    async def _pass_on(self, worker: Worker, number: int, seconds: float, call: Mapping[str, Any]) -> None:
        def tell() -> None:
            self._begin(self._send({"id": number, "waits": True}))

        if call["do"] == "reset":
            self.episodes.add(call["episode"])
        try:
            await self._send({"id": number, "reply": await worker.call(call, seconds, tell)})
        except WorkerEnded as error:
            blame = {"blamed": error.blamed, "suspected": error.suspected}
            await self._send({"id": number, "ended": str(error), **blame})
        finally:
            if call["do"] == "end":
                self.episodes.discard(call["episode"])

    async def _send(self, reply: Mapping[str, Any]) -> None:
        with suppress(ConnectionError):  # the trainer has left
            await self._socket.send_str(json.dumps(reply, separators=(",", ":")))
