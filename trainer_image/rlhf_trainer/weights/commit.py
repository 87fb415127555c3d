"""One call by which a server goes over to the weights that it received: pause, swap, prove, go on."""

import asyncio
import json
import logging
import time

from .guard import App, Receive, Scope, Send
from .inside import call, reply

log = logging.getLogger("vllm.rlhf")

COMMIT = "/commit"


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
            paused = await self._go_over(scope, wanted)
        except Exception as error:  # whatever a server raises whose engine is dead
            log.error("weight version %s: %s", wanted["version"], error)
            await reply(send, 500, {"error": str(error)})
        else:
            await reply(send, 200, {"pause_seconds": paused})

    async def _go_over(self, scope: Scope, wanted: dict[str, object]) -> float:
        """How long generation was paused, in seconds."""
        began = time.monotonic()
        # vLLM sleeps for 20 ms before it answers. No step begins once it is paused, and workers do what they are told
        # in order: the swap comes after the steps that are under way.
        pausing = asyncio.create_task(call(self.app, scope, "POST", "/pause?mode=keep"))
        while not (await call(self.app, scope, "GET", "/is_paused"))["is_paused"]:
            if pausing.done():
                pausing.result()
        await call(self.app, scope, "POST", "/finish_weight_update")
        workers = (await call(self.app, scope, "POST", "/collective_rpc", {"method": "rlhf_status"}))[
            "results"
        ]
        await pausing
        said = [{key: worker[key] for key in wanted} for worker in workers]
        if any(worker != wanted for worker in said):
            raise ValueError(f"the workers have {said}, sent was {wanted}")
        await call(self.app, scope, "POST", "/resume")
        return time.monotonic() - began


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
