"""Probes of a vLLM server: readiness, liveness, drain."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ....transport.frames import GENERATE
from ....weights.members import COMMIT, MAKE_ROOM, SLEEP
from .asgi import call, reply
from .guard import App, Receive, Scope, Send

READY, LIVE, DRAIN = "/ready", "/live", "/drain"
PROMPTS, WORKERS = "/v1/completions", "/collective_rpc"
BEGINNINGS = ("/init_weight_transfer_engine", "/start_weight_update")
"""Paths that begin an update: the trainer has abandoned any earlier one by then."""
CHANGES = frozenset({*BEGINNINGS, "/update_weights", "/finish_weight_update", COMMIT, SLEEP, MAKE_ROOM})

ANSWER_SECONDS = 2.0
"""Deadline of a healthy worker's reply, seconds: it replies between two engine steps."""
PROOF_SECONDS = 60.0
"""Deadline of the one-token completion, seconds."""
HUNG_SECONDS = 120.0
"""Longer than any engine step, such as a long prefill on a CPU; seconds."""
CHANGE_SECONDS = 600.0
"""Longer than any broadcast, during which workers reply to nothing else; seconds."""
QUIET_SECONDS = 3.0
"""Idle time before a server counts as drained, seconds: the trainer knows by then that this server is draining."""
DRAIN_SECONDS = 600.0
DRAINS = 4
"""Requests of one address that may wait for the drain: a kubelet makes one, and anybody may make them."""
_POLL_SECONDS = 0.1

ENGINE_DEAD = "vLLM's engine is dead"

Proof = tuple[int, str]
"""Version and digest of the weights that generated a completion."""


class Probes:
    """ASGI middleware, behind the token check, which exempts these paths:

    GET /ready: 200 once every worker holds the newest weights that the trainer sent and has generated a token with
    them; else 503. During an update the last result is kept.
    GET /live: 503 when the engine is dead or its workers hang.
    GET /drain: replies once no request has been running for QUIET_SECONDS; for a pod's `preStop`. 503 at once beyond
    DRAINS from one address, whose waits would keep the event loop busy."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._answers = {READY: self._ready, LIVE: self._live, DRAIN: self._drain}
        self._prompts = 0  # running requests
        self._drains = Counter[str]()  # addresses of those who wait for the drain
        self._quiet_since = time.monotonic()
        self._changes = 0  # running calls that change weights
        self._changed_at = 0.0  # time of the last one
        self._given_up_at: float | None = None  # start of the call that the workers have not answered
        self._question: asyncio.Task[list[dict[str, Any]] | None] | None = None
        self._owed_since: float | None = None  # last reply of the workers
        self._proof: Proof | None = None
        self._proving: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path") if scope["type"] == "http" else None
        if path in self._answers:
            reason = await self._answers[path](scope)
            refusal = {"reason": reason} if reason else {}
            await reply(send, 503 if reason else 200, {"ok": not reason, **refusal})
        elif path in CHANGES:
            with self._change(path):
                await self.app(scope, receive, send)
            if path == COMMIT:
                self._prove(scope)
        elif path in (GENERATE, PROMPTS):
            with self._prompt():
                await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _ready(self, scope: Scope) -> str:
        """Reason why the server is not ready; empty if it is."""
        if _dead(scope):
            return ENGINE_DEAD
        if self._changing():
            return "" if self._proof else "the first weights are on their way"
        workers = await self._ask(scope)
        if workers is None:
            return "the workers do not answer"
        if self._changing(open_session=any(w["open"] and w["failure"] is None for w in workers)):
            return "" if self._proof else "the first weights are on their way"
        held = _served_proof(workers)
        if held is None:
            return "holds no weights of the trainer"
        if any(worker["announced_version"] != held[0] for worker in workers):
            return f"holds weight version {held[0]}, the trainer sent {workers[0]['announced_version']}"
        if self._proof != held:
            await asyncio.wait({self._prove(scope)}, timeout=ANSWER_SECONDS)
        return "" if self._proof == held else f"has generated nothing with weight version {held[0]}"

    async def _live(self, scope: Scope) -> str:
        if _dead(scope):
            return ENGINE_DEAD
        if await self._ask(scope) is not None or self._owed_since is None:
            return ""
        since, limit = self._owed_since, CHANGE_SECONDS if self._changes else HUNG_SECONDS
        if self._given_up_at is not None:
            since, limit = max(since, self._given_up_at), HUNG_SECONDS
        owed = time.monotonic() - since
        return f"the workers have not answered for {owed:.0f} s" if owed > limit else ""

    async def _drain(self, scope: Scope) -> str:
        address, _ = scope.get("client") or ("", 0)
        if self._drains[address] >= DRAINS:
            return f"{DRAINS} requests from {address} wait already"
        self._drains[address] += 1
        try:
            return await self._drained()
        finally:
            self._drains -= Counter([address])  # and forgets it at 0

    async def _drained(self) -> str:
        deadline = time.monotonic() + DRAIN_SECONDS
        began = time.monotonic()
        while time.monotonic() < deadline:
            if not self._prompts and time.monotonic() - max(began, self._quiet_since) >= QUIET_SECONDS:
                return ""
            await asyncio.sleep(_POLL_SECONDS)
        return f"{self._prompts} prompts are still under way"

    def _changing(self, *, open_session: bool = False) -> bool:
        """True while weights are being changed, up to a time limit: the last readiness result is kept."""
        recent = time.monotonic() - self._changed_at < CHANGE_SECONDS
        return recent and (open_session or self._changes > 0)

    @contextmanager
    def _change(self, path: str) -> Iterator[None]:
        if self._changes and path in BEGINNINGS:
            self._given_up_at = self._given_up_at or time.monotonic()
        self._changes += 1
        self._changed_at = time.monotonic()
        try:
            yield
        finally:
            self._changes -= 1

    @contextmanager
    def _prompt(self) -> Iterator[None]:
        self._prompts += 1
        try:
            yield
        finally:
            self._prompts -= 1
            self._quiet_since = time.monotonic()

    async def _ask(self, scope: Scope) -> list[dict[str, Any]] | None:
        """Each worker's `rlhf_status`; None on timeout. At most one call at a time, shared by all callers."""
        if self._question is None or self._question.done():
            self._owed_since = self._owed_since or time.monotonic()
            self._question = asyncio.create_task(self._status(scope))
        question = self._question
        await asyncio.wait({question}, timeout=ANSWER_SECONDS)
        return question.result() if question.done() else None

    async def _status(self, scope: Scope) -> list[dict[str, Any]] | None:
        try:
            answer = await call(self.app, scope, "POST", WORKERS, {"method": "rlhf_status"})
        except Exception:  # any error of a server whose engine is dead or shutting down
            return None
        self._owed_since = self._given_up_at = None
        workers: list[dict[str, Any]] = answer["results"]
        return workers

    def _prove(self, scope: Scope) -> "asyncio.Task[None]":
        """Starts the one-token completion unless it is running."""
        if self._proving is None or self._proving.done():
            self._proving = asyncio.create_task(self._generate(scope))
        return self._proving

    async def _generate(self, scope: Scope) -> None:
        before = await self._ask(scope)
        if before is None or (held := _served_proof(before)) is None or held == self._proof:
            return
        body = {"prompt": [0], "max_tokens": 1, "temperature": 0.0}
        try:
            answer = await asyncio.wait_for(call(self.app, scope, "POST", PROMPTS, body), PROOF_SECONDS)
        except Exception:  # as in _status; and TimeoutError
            return
        after = await self._ask(scope)
        if answer["choices"][0]["finish_reason"] != "abort" and after and _served_proof(after) == held:
            self._proof = held


def _dead(scope: Scope) -> bool:
    errored: bool = scope["app"].state.engine_client.errored
    return errored


def _served_proof(workers: list[dict[str, Any]]) -> Proof | None:
    """Version and digest that all workers serve; None if they are the checkpoint's or differ."""
    held = {(worker["version"], worker["digest"]) for worker in workers}
    version, digest = held.pop()
    return None if held or version is None or digest is None else (version, digest)
