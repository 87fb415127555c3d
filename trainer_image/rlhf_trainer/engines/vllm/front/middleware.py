"""Outermost ASGI middleware of a vLLM server, whose calls reach all of its engines."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ....process import gpu_turns
from ....weights.members import SLEEP
from ..serve import watchdog
from .asgi import call
from .commit import Commit
from .fence import Fence
from .guard import App, Receive, Scope, Send, TokenGuard
from .probes import Probes
from .streams import TokenStreams

log = logging.getLogger("vllm.rlhf")


class Front(TokenGuard):
    """Token check, and behind it the fence against earlier trainers, the probes, the commit of new weights and the
    token streams. Starts the watchdog at server start, has calls reach all engines, and responses detokenized as the
    trainer does it; an engine that takes turns with a trainer sleeps at once."""

    def __init__(self, app: App) -> None:
        super().__init__(Fence(Probes(Commit(TokenStreams(app)))))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            engine = scope["app"].state.engine_client
            watchdog.start(engine)
            answer_for_all(engine)
            from .detokenizer import install  # imports vLLM, which this module is imported without

            install()
            if gpu_turns.INHERITED in os.environ:
                self._first_sleep = asyncio.create_task(begin_asleep(self.app, scope))
        await super().__call__(scope, receive, send)


async def begin_asleep(app: App, scope: Scope) -> None:
    """Sends a server that takes turns with a trainer to sleep, and then lets the trainer compute on its GPUs."""
    try:
        await call(app, {**scope, "type": "http", "headers": []}, "POST", SLEEP)
    except Exception as error:  # any error of a server whose engine is dead, which the watchdog reports
        log.error("the engine does not go to sleep: %s", error)
    finally:
        gpu_turns.release_inherited(os.environ)


class Client(Protocol):
    """Protocol of vLLM's AsyncLLM."""

    engine_core: Any
    collective_rpc: Callable[..., Any]


def answer_for_all(client: Client) -> None:
    """Makes `collective_rpc` of this server, also where vLLM calls it, return the answers of all engines' workers, in
    the engines' order. With data parallelism vLLM itself returns those of the first engine alone: weights would count
    as staged, swapped and proven once that one has them."""

    async def collective_rpc(
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        core, call = client.engine_core, ("collective_rpc", method, timeout, args, kwargs)
        engines: Sequence[bytes] = core.core_engines
        answers = await asyncio.gather(
            *(core._call_utility_async(*call, engine=engine) for engine in engines)
        )
        return [worker for workers in answers for worker in workers]

    client.collective_rpc = collective_rpc
