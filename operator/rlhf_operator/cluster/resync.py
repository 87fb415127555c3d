"""Lists what watch streams do not carry: all there is at the start, and deletions while nobody watched."""

from collections.abc import Collection

from .api import Api, Key
from .cache import COMPANIONS, Cache
from .watch import OURS, SELECTORS, See


async def fill(api: Api, namespace: str | None, kinds: Collection[str], see: See) -> None:
    """See every object once, so that nobody takes a pod for missing that is only not known yet."""
    for kind in kinds:
        async for body in api.list(kind, namespace, labels=SELECTORS[kind]):
            see(body, False)


async def sweep(api: Api, namespace: str | None, kinds: Collection[str], cache: Cache) -> set[Key]:
    """Forget what is no more; the jobs that it belonged to."""
    touched = set[Key]()
    for kind in (*kinds, *COMPANIONS):
        before = cache.uids(kind)  # what comes while we list is not judged
        there = {
            body["metadata"]["uid"]
            async for body in api.list(kind, namespace, labels=SELECTORS.get(kind, OURS), metadata_only=True)
        }
        touched |= cache.drop_uids(kind, before - there)
    return touched
