"""Runs coroutines side by side, and ends those that go on."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs all coroutines, and returns their results in order. Raises the first error; none goes on after this."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_all(tasks)


async def end_all(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels the tasks, and waits for their ends. Raises none of their errors."""
    ending = [*tasks]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
