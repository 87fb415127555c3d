"""One call by which a server goes over to the weights that it received: pause, swap, prove, go on."""

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING

from ...weights.members import COMMIT
from .asgi import reply
from .guard import App, Receive, Scope, Send

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger("vllm.rlhf")


class Commit:
    """ASGI middleware, behind the token check, with a path of its own:

    POST /commit {"version": v, "digest": d}: 200 {"pause_seconds": s} once every worker serves these weights, requests
    in flight kept. Else 500 {"error": why}, and the server stays paused: it may have neither the old ones nor the new.

    The server does it all by itself, so a trainer that dies meanwhile leaves nobody paused.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != COMMIT:
            await self.app(scope, receive, send)
            return
        wanted = json.loads(await _body(receive))
        try:
            paused = await _go_over(scope["app"].state.engine_client, wanted)
        except Exception as error:  # whatever a server raises whose engine is dead
            log.error("weight version %s: %s", wanted["version"], error)
            await reply(send, 500, {"error": str(error)})
        else:
            await reply(send, 200, {"pause_seconds": paused})


async def _go_over(engine: "AsyncLLM", wanted: dict[str, object]) -> float:
    """How long generation was paused, in seconds. Raises ValueError where the workers do not have what is `wanted`."""
    began = time.monotonic()
    # vLLM's own pause_generation does these two and then sleeps for 20 ms: a small model's swap takes less.
    await engine.renderer.clear_mm_cache_async()
    pausing = asyncio.create_task(engine.engine_core.pause_scheduler_async(mode="keep", clear_cache=True))
    # No step begins once it is paused, and workers do what they are told in order: the swap comes after the steps that
    # are under way, whose end is what `pausing` waits for before it clears the caches.
    while not await engine.is_paused():
        if pausing.done():
            pausing.result()
    idle = time.monotonic()
    await engine.finish_weight_update()
    swapped = time.monotonic()
    workers = await engine.collective_rpc("rlhf_status")
    await pausing
    said = [{key: worker[key] for key in wanted} for worker in workers]
    if any(worker != wanted for worker in said):
        raise ValueError(f"the workers have {said}, sent was {wanted}")
    await engine.resume_generation()
    ended = time.monotonic()
    parts = f"{idle - began:.4f} until no step began, then {swapped - idle:.4f} for the swap"
    log.info("weight version %s serves after %.4f s of pause: %s", wanted["version"], ended - began, parts)
    return ended - began


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
