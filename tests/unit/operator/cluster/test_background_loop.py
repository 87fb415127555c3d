"""The event loop beside the operator's own."""

import asyncio

from rlhf_operator.cluster.watching.background_loop import BackgroundLoop


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    seen: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def leave() -> None:
        async def start() -> asyncio.Task[None]:
            return asyncio.create_task(forever())

        async with BackgroundLoop() as loop:
            task = await loop.run(start())
            await loop.run(asyncio.sleep(0))
        assert task.cancelled()

    asyncio.run(leave())
    assert seen == ["cancelled"]
