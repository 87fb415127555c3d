"""Calls of the Kubernetes API: several at once, bodies of server-side apply, and answers that are nested deep."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from .api_error import ApiError

S = TypeVar("S")
T = TypeVar("T")


DEEPEST = 10_000
"""Levels of an object that Go's JSON parser accepts; Python 3.11's, which the image has, takes less than 2 MB of stack.
Python 3.12 has a limit of its own for calls in C, which cannot be raised."""
_MORE = 2_000
"""Recursion depth added for a list around the object and for Python's own calls."""
APPLY = "application/apply-patch+yaml; charset=utf-8"
"""With its parameter, since the client's library would write a body of the bare type by `json.dumps`."""
_ESCAPED = re.compile("[\x7f-\uffff]")


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


def allow_deep_json() -> None:
    """Raises Python's recursion limit to the depth that an API server accepts, so that any stored object can be read.

    Free-form fields of a job, such as a pod template, may be nested that deep, and Python's JSON parser recurses once
    for each level. At the default limit one such job ends the listing, and so the operator, for all jobs. What is
    deeper than a manifest may be is refused with that job's name afterwards (`strict_yaml.not_json`).
    """
    sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST + _MORE))


def as_yaml(body: dict[str, Any]) -> str:
    """JSON that a YAML reader takes for the same. Characters beyond U+FFFF are written as they are, since YAML refuses
    the two escapes of a surrogate pair. Others are escaped: YAML refuses some, and folds lines at U+0085 and U+2028.
    A surrogate without its pair becomes U+FFFD.
    """
    return _ESCAPED.sub(_escape, json.dumps(body, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return rf"\u{0xFFFD if 0xD800 <= code <= 0xDFFF else code:04x}"
