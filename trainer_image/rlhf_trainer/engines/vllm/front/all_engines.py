"""Calls to all engines of a server: with data parallelism vLLM itself returns the answers of the first one alone."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Client(Protocol):
    """Protocol of vLLM's AsyncLLM."""

    engine_core: Any
    collective_rpc: Callable[..., Any]


def answer_for_all(client: Client) -> None:
    """Makes `collective_rpc` of this server, also where vLLM calls it, return the answers of all engines' workers, in
    the engines' order. Else weights would count as staged, swapped and proven once the first engine has them."""

    async def collective_rpc(
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        core, call = client.engine_core, ("collective_rpc", method, timeout, args, kwargs)
        engines: Sequence[bytes] = core.core_engines
        answers = await asyncio.gather(
            *(core._call_utility_async(*call, engine=engine) for engine in engines)
        )
        return [worker for workers in answers for worker in workers]

    client.collective_rpc = collective_rpc
