"""Commit of received weights in one request: pause generation, swap, resume; then verify."""

import asyncio
import json
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ...weights.members import COMMIT
from .asgi import body, reply
from .gate import GENERATES, LABELLED, Gate
from .guard import App, Receive, Scope, Send
from .streams import REQUEST

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger("vllm.rlhf")


class Commit:
    """ASGI middleware, behind the token check, with a path of its own:

    POST /commit {"version": v, "digest": d, "keep": k}: 200 {"pause_seconds": s} once every worker serves these
    weights. Else 500 {"error": why}, and the server stays paused: its weights may be a mix of old and new.

    With `keep`, responses under way are frozen and go on after the swap, in the same streams and with their keys and
    values. Else they are aborted with the tokens so far (`finish_reason: abort`), to be continued by another request,
    and the caches are cleared. The server does all this in one request, so a trainer that dies meanwhile leaves no
    server paused. Afterwards, between the engine's steps, the workers verify slice by slice that they serve what they
    loaded.
    """

    def __init__(self, app: App) -> None:
        self.app, self._gate = app, Gate(app)
        self._proving: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in GENERATES:
            await self._gate(scope, receive, send)
            return
        if scope["type"] != "http" or scope["path"] != COMMIT:
            await self.app(scope, receive, send)
            return
        wanted = json.loads(await body(receive))
        keep = wanted.pop("keep", False)
        self._gate.close()
        try:
            paused = await _go_over(scope["app"].state.engine_client, self._gate, wanted, keep)
        except Exception as error:  # any error of a server whose engine is dead
            log.error("weight version %s: %s", wanted["version"], error)
            await reply(send, 500, {"error": str(error)})
        else:
            self._gate.open(wanted["version"])
            self._proving = asyncio.create_task(_prove(scope["app"].state.engine_client))
            await reply(send, 200, {"pause_seconds": paused})


async def _go_over(engine: "AsyncLLM", gate: Gate, wanted: dict[str, object], keep: bool) -> float:
    """Swaps to the staged weights; returns the seconds without generation. Raises ValueError where the workers have not
    staged `wanted`.
    """
    began = time.monotonic()

    async def pause() -> None:
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
    said = [{key: worker[key] for key in wanted} for worker in workers]
    if any(worker != wanted for worker in said):
        raise ValueError(f"the workers have {said}; the trainer sent {wanted}")
    # vLLM names this version with the tokens of each step that it takes in from here on: those of the earlier steps are
    # in, since the pause is over.
    await engine.update_weight_version(str(wanted["version"]))
    await engine.resume_generation()
    ended = time.monotonic()
    parts = f"{idle - began:.4f} until steps had ended, then {swapped - idle:.4f} for the swap"
    log.info("weight version %s serves after %.4f s of pause: %s", wanted["version"], ended - began, parts)
    return ended - began


async def _prove(engine: "AsyncLLM") -> None:
    """Verifies the serving weights in the background; the trainer polls the result. Ends silently if the engine dies,
    which the watchdog reports."""
    with suppress(Exception):
        while not all(await engine.collective_rpc("rlhf_prove")):
            pass
