"""Lists what watch streams do not carry: all there is at the start, and deletions while nobody watched."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .api import Api, Body, Key
from .cache import COMPANIONS, Cache
from .watch import OURS, SELECTORS, See


@dataclass(frozen=True)
class Swept:
    """Differences between a listing and the cache."""

    touched: set[Key] = field(default_factory=set)
    """Jobs of which something is no more."""
    unseen: dict[str, Body] = field(default_factory=dict)
    """Metadata by uid of watched objects whose present version no watch has told of yet."""


async def fill(api: Api, namespace: str | None, kinds: Collection[str], see: See) -> None:
    """See every object once, jobs last, so that nobody takes a pod for missing that is only not known yet."""
    for kind in sorted(kinds, key=lambda kind: kind == "RLHFJob"):
        async for body in api.list(kind, namespace, labels=SELECTORS[kind]):
            see(body, False)


async def sweep(api: Api, namespace: str | None, kinds: Collection[str], cache: Cache) -> Swept:
    """Forget what is no more."""
    swept = Swept()
    for kind in (*kinds, *COMPANIONS):
        before = cache.uids(kind, namespace)  # what comes while we list is not judged
        there = set[str]()
        async for body in api.list(kind, namespace, labels=SELECTORS.get(kind, OURS), metadata_only=True):
            there.add(uid := body["metadata"]["uid"])
            if kind in kinds and not cache.knows(body):
                swept.unseen[uid] = body
        swept.touched.update(cache.drop_uids(kind, before - there))
    return swept


def overdue(before: Mapping[str, Body], now: Mapping[str, Body], cache: Cache) -> list[str]:
    """Kind and name of what a watch owes: unseen in a sweep, there in the next, and still not seen as it was then.

    Both are `Swept.unseen`. One sweep alone says nothing: news may be on their way.
    """
    return [
        f"{body['kind']} {body['metadata']['namespace']}/{body['metadata']['name']}"
        for uid, body in before.items()
        if uid in now and not cache.knows(body)
    ]
