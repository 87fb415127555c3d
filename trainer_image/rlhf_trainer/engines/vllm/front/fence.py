"""Fence of a vLLM server against trainers that a later one of the same run has replaced."""

import logging

from ....transport.http import DEPOSED, EPOCH_HEADER
from .asgi import reply
from .guard import OPEN_PATHS, App, Receive, Scope, Send

log = logging.getLogger("vllm.rlhf")


class Fence:
    """ASGI middleware, behind the token check: once a trainer of some epoch has called, those of earlier epochs get
    DEPOSED, so that a trainer on a node that its cluster has given up cannot bring its weights here any more. Requests
    without EPOCH_HEADER are nobody's, and pass, as those to OPEN_PATHS do."""

    def __init__(self, app: App) -> None:
        self.app, self._latest = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        epoch_text = dict(scope.get("headers", ())).get(EPOCH_HEADER.encode(), b"")
        if not epoch_text.isdigit() or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
        elif (epoch := int(epoch_text)) < self._latest:
            message = f"a trainer of epoch {self._latest} already uses this server; this request is from epoch {epoch}"
            log.warning("refused %s: %s", scope["path"], message)
            await reply(send, DEPOSED, {"error": message})
        else:
            if epoch > self._latest:
                log.info("the trainer has epoch %d", epoch)
            self._latest = epoch
            await self.app(scope, receive, send)
