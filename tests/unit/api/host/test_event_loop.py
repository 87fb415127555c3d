"""An event loop on a thread of its own."""

import asyncio

from rlhf_api.host.event_loop import EventLoop


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    events: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    async def leave() -> None:
        async def start() -> asyncio.Task[None]:
            return asyncio.create_task(forever())

        async with EventLoop("test") as loop:
            task = await loop.run_async(start())
            await loop.run_async(asyncio.sleep(0))
        assert task.cancelled()

    asyncio.run(leave())
    assert events == ["cancelled"]
