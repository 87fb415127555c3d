"""Commit of received weights in one request: pause generation, swap, resume; then verify."""

import asyncio
import json
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ....weights.members import COMMIT, MAKE_ROOM, RECHECK, SLEEP
from .asgi import body, reply
from .gate import GENERATES, LABELLED, Gate
from .guard import App, Receive, Scope, Send
from .sleep import Sleep, State
from .streams import REQUEST

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger("vllm.rlhf")


class Commit:
    """ASGI middleware, behind the token check, with paths of its own:

    POST /commit {"version": v, "digest": d, "keep": k}: 200 {"pause_seconds": s} once every worker serves these
    weights. Else 500 {"error": why}, and the server stays paused: its weights may be a mix of old and new.
    POST /recheck: 200 {"results": what each worker's `rlhf_recheck` returns}, after the proof that a commit begins.
    POST /sleep: 200 {"results": what each worker's `rlhf_release` returns}; see `Sleep`. POST /make_room: 200 {}, after
    which an engine that sleeps takes new weights; their commit wakes it up.

    With `keep`, responses under way are frozen and go on after the swap, in the same streams and with their keys and
    values. Else they are aborted with the tokens so far (`finish_reason: abort`), to be continued by another request,
    and the caches are cleared. The server does all this in one request, so a trainer that dies meanwhile leaves no
    server paused. Afterwards, between the engine's steps, the workers prove slice by slice that they serve what they
    loaded. A recheck waits for that: the slices at once would hold up all responses.
    """

    def __init__(self, app: App) -> None:
        self.app, self._gate = app, Gate(app)
        self._sleep = Sleep(self._gate)
        self._proving: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path in GENERATES:
            await self._gate(scope, receive, send)
        elif path == COMMIT:
            await self._commit(scope["app"].state.engine_client, json.loads(await body(receive)), send)
        elif path in (RECHECK, SLEEP, MAKE_ROOM):
            engine = scope["app"].state.engine_client
            try:
                answer = await self._answer(path, engine)
            except Exception as error:  # any error of a server whose engine is dead
                await reply(send, 500, {"error": str(error)})
            else:
                await reply(send, 200, answer)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, path: str, engine: "AsyncLLM") -> dict[str, Any]:
        if self._proving is not None:
            await asyncio.wait({self._proving})
        if path == MAKE_ROOM:
            await self._sleep.make_room(engine)
            return {}
        if path == SLEEP:
            return {"results": await self._sleep.begin(engine)}
        serves = self._sleep.state is State.AWAKE
        return {"results": await engine.collective_rpc("rlhf_recheck") if serves else []}

    async def _commit(self, engine: "AsyncLLM", expected: dict[str, Any], send: Send) -> None:
        keep = expected.pop("keep", False)
        self._gate.close()
        try:
            paused = await _go_over(engine, self._gate, self._sleep, expected, keep)
        except Exception as error:  # any error of a server whose engine is dead
            log.error("weight version %s: %s", expected["version"], error)
            await reply(send, 500, {"error": str(error)})
        else:
            self._gate.open(expected["version"])
            self._proving = asyncio.create_task(_prove(engine))
            await reply(send, 200, {"pause_seconds": paused})


async def _go_over(
    engine: "AsyncLLM", gate: Gate, sleep: Sleep, expected: dict[str, object], keep: bool
) -> float:
    """Swaps to the staged weights, and wakes the engine up; returns the seconds without generation. Raises ValueError
    where the workers have not staged `expected`.
    """
    began = time.monotonic()

    async def pause() -> None:
        if sleep.state is not State.AWAKE:  # nothing is under way, and there are no caches
            return
        await engine.engine_core.pause_scheduler_async(mode="keep" if keep else "abort", clear_cache=not keep)

    async def abort_labelled() -> None:
        requests = engine.output_processor.external_req_ids
        await engine.abort([name for name in requests if not name.startswith(REQUEST)])

    # vLLM's own pause_generation does these two and then sleeps for 20 ms, longer than a small model's swap.
    try:
        await engine.renderer.clear_mm_cache_async()
        await pause()  # until the steps under way have ended and their tokens are on the way
        idle = time.monotonic()
        swapping = asyncio.create_task(engine.finish_weight_update())
        await asyncio.sleep(0)  # asked for before the streams under way send their last tokens
    finally:
        gate.release()
    await swapping
    swapped = time.monotonic()
    workers = await engine.collective_rpc("rlhf_status")
    if keep:
        await gate.empty(LABELLED, abort_labelled)
    else:
        await gate.empty(GENERATES, pause)
    reports = [{key: worker[key] for key in expected} for worker in workers]
    if any(worker != expected for worker in reports):
        raise ValueError(f"the workers have {reports}; the trainer sent {expected}")
    await sleep.end(engine)
    # vLLM names this version with the tokens of each step that it takes in from here on: those of the earlier steps are
    # in, since the pause is over.
    await engine.update_weight_version(str(expected["version"]))
    await engine.resume_generation()
    ended = time.monotonic()
    parts = f"{idle - began:.4f} until steps had ended, then {swapped - idle:.4f} for the swap"
    log.info("weight version %s serves after %.4f s of pause: %s", expected["version"], ended - began, parts)
    return ended - began


async def _prove(engine: "AsyncLLM") -> None:
    """Verifies the serving weights in the background; the trainer polls the result. Ends silently if the engine dies,
    which the watchdog reports."""
    with suppress(Exception):
        while not all(await engine.collective_rpc("rlhf_prove")):
            pass
