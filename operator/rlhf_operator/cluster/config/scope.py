"""Namespaces that the operator serves: the whole cluster, or a list, of which some may be temporarily closed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from ...kube.api_error import ApiError

logger = logging.getLogger(__name__)


class Scope:
    """The list of namespaces, and the closed ones: the API server refuses to list them, as after a namespace was
    deleted with its RoleBinding. Closed ones are skipped until they can be listed again, so that they do not block
    other namespaces' jobs.
    """

    def __init__(self, namespaces: Collection[str]) -> None:
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._moved = asyncio.Event()
        self.closed: frozenset[str] = frozenset()

    @property
    def open(self) -> tuple[str, ...]:
        """Namespaces to watch; empty for the whole cluster."""
        return tuple(name for name in self._namespaces if name is not None and name not in self.closed)

    async def each(self, act: Callable[[str | None], Awaitable[None]]) -> frozenset[str]:
        """Calls `act` for each namespace (None: the whole cluster), and closes those whose listing is refused with 403;
        returns those that were open before.

        Raises:
            ApiError: another error, or 403 for every namespace; none is closed or opened then.
        """
        refusals: dict[str | None, ApiError] = {}
        for namespace in self._namespaces:
            try:
                await act(namespace)
            except ApiError as error:
                refusals[namespace] = error
                if error.status != 403 or len(refusals) == len(self._namespaces):
                    raise
        before, self.closed = self.closed, frozenset(name for name in refusals if name is not None)
        for name in self.closed - before:
            logger.warning(
                "namespace %s is not served until the operator may list it: %s", name, refusals[name]
            )
        for name in before - self.closed:
            logger.info("namespace %s is served again", name)
        self._moved.set()
        return self.closed - before

    async def other_than(self, served: tuple[str, ...]) -> None:
        """Waits until the set of open namespaces differs from `served`."""
        while self.open == served:
            self._moved.clear()
            await self._moved.wait()
