"""Outermost ASGI middleware of a vLLM server."""

from ..serve import watchdog
from .all_engines import answer_for_all
from .commit import Commit
from .fence import Fence
from .guard import App, Receive, Scope, Send, TokenGuard
from .probes import Probes
from .streams import TokenStreams


class Front(TokenGuard):
    """Token check, and behind it the fence against earlier trainers, the probes, the commit of new weights and the
    token streams. Starts the watchdog at server start, has calls reach all engines, and responses detokenized as the
    trainer does it."""

    def __init__(self, app: App) -> None:
        super().__init__(Fence(Probes(Commit(TokenStreams(app)))))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            engine = scope["app"].state.engine_client
            watchdog.start(engine)
            answer_for_all(engine)
            from .detokenizer import install  # imports vLLM, which this module is imported without

            install()
        await super().__call__(scope, receive, send)
