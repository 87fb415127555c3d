"""The viewers of the last minutes, each known by its token alone, and how many requests each may have under way."""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from ...kube.api import Api
from ..refusal import Refusal
from .viewer import Viewer

MOST_VIEWERS = 64
MOST_REQUESTS, MOST_OF_ONE = 64, 8
"""Under way at once, of all viewers and of one."""
UNUSED_SECONDS = 600.0
_TOKEN = re.compile(r"[\w.~+/=:-]{1,8000}", re.ASCII)


def read_token(authorization: str) -> str:
    """The bearer token of a header. Raises Refusal for none, and for what is none."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise Refusal(401, "needs your Kubernetes token, as `Authorization: Bearer TOKEN`")
    return token


class Viewers:
    """Of one page. `connect`: the client of the API server with a token."""

    def __init__(self, connect: Callable[[str], Api], namespaces: Sequence[str]) -> None:
        self._connect, self._namespaces = connect, namespaces
        self._viewers = OrderedDict[bytes, tuple[float, Viewer]]()
        self._under_way = 0

    async def close(self) -> None:
        for _, viewer in self._viewers.values():
            await viewer.close()

    @asynccontextmanager
    async def entered(self, authorization: str) -> AsyncIterator[Viewer]:
        """The viewer of a request's header, for as long as it is answered. Raises Refusal for no token, and for too
        many requests."""
        token = read_token(authorization)
        if self._under_way >= MOST_REQUESTS:
            raise Refusal(503, "too many requests; the page goes on trying")
        self._under_way += 1
        try:
            viewer = await self._find(token)
            if viewer.under_way >= MOST_OF_ONE:
                raise Refusal(
                    429, f"{MOST_OF_ONE} requests of yours are being answered; the page goes on trying"
                )
            viewer.under_way += 1
            try:
                yield viewer
            finally:
                viewer.under_way -= 1
        finally:
            self._under_way -= 1

    async def _find(self, token: str) -> Viewer:
        key, now = hashlib.sha256(token.encode()).digest(), time.monotonic()
        known = self._viewers.pop(key, None)
        viewer = known[1] if known else Viewer(token, self._connect(token), self._namespaces)
        self._viewers[key] = now, viewer
        await self.forget_unused(viewer)
        return viewer

    async def forget_unused(self, but: Viewer | None = None) -> None:
        """Forgets those who have left, with their tokens."""
        now = time.monotonic()
        for key, (used, viewer) in list(self._viewers.items()):
            is_old = now - used > UNUSED_SECONDS or len(self._viewers) > MOST_VIEWERS
            if is_old and not viewer.under_way and viewer is not but:
                self._viewers.pop(key, None)
                await viewer.close()
