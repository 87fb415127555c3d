"""Several calls of the Kubernetes API at once."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from .api_error import ApiError

S = TypeVar("S")
T = TypeVar("T")


async def run_all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs all calls concurrently, each to its end; then raises the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


LARGEST_BATCH = 32


async def run_growing(call: Callable[[S], Coroutine[Any, Any, object]], things: Sequence[S]) -> None:
    """Calls for things of one kind in batches of 1, 2, 4 and so on up to `LARGEST_BATCH`, and raises an error in the
    end. What the server refuses once, such as a pod beyond a quota, it is not asked a thousand times; a name that is
    taken (409) is another one's alone."""
    failed, done, size = None, 0, 1
    while done < len(things) and (failed is None or failed.status == 409):
        try:
            await run_all(map(call, things[done : done + size]))
        except ApiError as error:
            failed = error
        done, size = done + size, min(2 * size, LARGEST_BATCH)
    if failed is not None:
        raise failed
