"""The trainer's control API: status, membership, and requests to checkpoint or stop."""

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from rlhf_api.contract.proof import PROOF, Prover
from rlhf_api.contract.report import STARTING, TrainerStatus
from rlhf_api.contract.run import (
    CONTROL_CHECKPOINT,
    CONTROL_MEMBERS,
    CONTROL_STATUS,
    CONTROL_STOP,
    Member,
    Membership,
)
from rlhf_api.roles import HEALTH, LIVE_SECONDS, PROGRESS, Role

from ..process import progress

MOST_EXHAUSTED = 256
"""Of sandboxes that have ended, whose episodes ask for the reason within seconds."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def token_required(prover: Prover) -> Any:
    """aiohttp middleware: every path but `/health` and `/progress` needs this process's key; answers who asks for its
    proof."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == PROOF and (answer := prover.answer(request.query.get("nonce", ""))):
            return web.Response(text=answer, content_type="application/json")
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if request.path not in (HEALTH, PROGRESS) and not prover.admits(given):
            raise web.HTTPUnauthorized(text="this API needs the job's token")
        return await handler(request)

    return check


async def healthy(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def progresses(_request: web.Request) -> web.Response:
    """Its kubelet asks each LIVE_SECONDS, and counts the times in a row that there is nothing new."""
    silent = progress.silent_seconds()
    status = 200 if silent < 2 * LIVE_SECONDS else 503
    return web.json_response({"silentSeconds": round(silent)}, status=status)


class Control:
    """State shared by the host's requests and the training loop; handlers run on another thread than the loop."""

    def __init__(self, total_steps: int) -> None:
        self._lock = threading.Lock()
        self._status = TrainerStatus(activity=STARTING, total_steps=total_steps)
        self._membership = Membership()
        self._exhausted = deque[str](maxlen=MOST_EXHAUSTED)
        self._was_reported = threading.Event()
        self.membership_changed = threading.Event()
        self.stop_requested = threading.Event()
        self.checkpoint_requested = threading.Event()

    def report(self, **changes: Any) -> None:
        """Changes fields of the status, by their Python names; a sign of progress."""
        progress.sign()
        with self._lock:
            self._status = self._status.model_copy(update=changes)
            self._was_reported.clear()

    def wait_told(self, timeout: float) -> None:
        """Before the process ends: waits until the host has read the present status, at most `timeout` seconds."""
        self._was_reported.wait(timeout)

    @property
    def status(self) -> TrainerStatus:
        with self._lock:
            return self._status

    def members(self, role: Role) -> list[Member]:
        """Members of a role that take new work."""
        with self._lock:
            return [m for m in self._membership.members if m.role is role and not m.draining]

    def unplaced(self, role: Role) -> int:
        """Members of a role that are wanted and have no node."""
        with self._lock:
            return self._membership.unplaced.count(role)

    def present(self, role: Role) -> dict[str, Member]:
        """All members of a role by uid, draining ones included."""
        with self._lock:
            return {m.uid: m for m in self._membership.members if m.role is role}

    @property
    def exhausted(self) -> frozenset[str]:
        """Uids of the sandboxes that have ended last by what their commands took."""
        with self._lock:
            return frozenset(self._exhausted)

    def learn(self, membership: Membership) -> None:
        """Takes the membership that the host tells."""
        with self._lock:
            self._membership = membership
            self._exhausted += [uid for uid in membership.exhausted if uid not in self._exhausted]
        self.membership_changed.set()

    async def serve(self, host: str, prover: Prover) -> web.AppRunner:
        """Starts the server at an address of this machine. Raises OSError where the port is taken."""
        app = web.Application(middlewares=[token_required(prover)])
        app.add_routes(
            [
                web.get(HEALTH, healthy),
                web.get(PROGRESS, progresses),
                web.get(CONTROL_STATUS, self._get_status),
                web.put(CONTROL_MEMBERS, self._put_members),
                web.post(CONTROL_STOP, self._post_stop),
                web.post(CONTROL_CHECKPOINT, self._post_checkpoint),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, prover.port).start()
        return runner

    async def _get_status(self, _request: web.Request) -> web.Response:
        with self._lock:
            status = self._status.model_copy(update={"progress_count": progress.count()})
            text = status.model_dump_json(by_alias=True)
            self._was_reported.set()
        return web.Response(text=text, content_type="application/json")

    async def _put_members(self, request: web.Request) -> web.Response:
        try:
            membership = Membership.model_validate_json(await request.read())
        except ValidationError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        self.learn(membership)
        return web.json_response({"members": len(membership.members)})

    async def _post_stop(self, _request: web.Request) -> web.Response:
        self.stop_requested.set()
        return web.json_response({"stopping": True})

    async def _post_checkpoint(self, _request: web.Request) -> web.Response:
        self.checkpoint_requested.set()
        return web.json_response({"checkpointing": True})
