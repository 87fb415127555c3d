"""Names of a namespace's jobs, for completion: a user waits with a key pressed."""

import asyncio
from contextlib import suppress

from ..console.exits import Failure
from ..kube.api_error import ApiError
from .client import Session
from .kubeconfig import locate

_PATIENCE_SECONDS = 3.0


def read_names(kubeconfig: str | None, context: str | None, namespace: str | None) -> list[str]:
    """None where the cluster gives no answer in time."""
    with suppress(Failure, ApiError, OSError, ValueError, TimeoutError):
        return asyncio.run(_read(kubeconfig, context, namespace))
    return []


async def _read(kubeconfig: str | None, context: str | None, namespace: str | None) -> list[str]:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        target = await locate(kubeconfig, context, namespace)
        async with Session(target) as session:
            return [body["metadata"]["name"] async for body in session.list("RLHFJob", session.namespace)]
