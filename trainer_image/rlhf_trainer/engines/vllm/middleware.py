"""Outermost ASGI middleware of a vLLM server."""

from . import watchdog
from .commit import Commit
from .guard import App, Receive, Scope, Send, TokenGuard
from .probes import Probes
from .streams import TokenStreams


class Front(TokenGuard):
    """Token check, and behind it the probes, the commit of new weights and the token streams. Starts the watchdog at
    server start."""

    def __init__(self, app: App) -> None:
        super().__init__(Probes(Commit(TokenStreams(app))))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            watchdog.start(scope["app"].state.engine_client)
        await super().__call__(scope, receive, send)
