"""Lists objects that watches do not deliver: the initial state, and deletions while no watch was open."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ...job.names import JOB, MANAGED_BY, OPERATOR
from ...job.trimmed import trim
from ...kube.api import Api, Body, Key
from ...kube.api_error import ApiError
from .cache import COMPANIONS, Cache
from .watch import OURS, SELECTORS, See

_HIDDEN = f"{JOB},{MANAGED_BY}!={OPERATOR}"
_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True)
class ListingDiff:
    """Differences between a listing and the cache."""

    touched: set[Key] = field(default_factory=set)
    """Jobs with a deleted object, a companion that somebody else has changed, or a pod that no watch shows."""
    unseen: dict[str, Body] = field(default_factory=dict)
    """Metadata by uid of watched objects whose present version no watch has delivered yet."""
    older: list[str] = field(default_factory=list)
    """Objects that had a later version before the listing, which shows the newest: etcd was restored from a backup, and
    counts on from there."""


async def fill(api: Api, namespace: str | None, kinds: Collection[str], see: See) -> None:
    """Adds every object once, jobs last, so that no pod counts as missing before it is listed."""
    for kind in sorted(kinds, key=lambda kind: kind == "RLHFJob"):
        async for body in api.list(kind, namespace, labels=SELECTORS[kind], keep=trim):
            see(body, False)


async def sweep(api: Api, namespace: str | None, kinds: Collection[str], cache: Cache) -> ListingDiff:
    """Removes deleted objects from the cache, and takes changes of companions, which are not watched; returns the
    differences. Companions that no job has are not listed: the server may not know their kind."""
    swept = ListingDiff()
    for kind in (*kinds, *COMPANIONS):
        before = cache.versions(kind, namespace)  # changes during the listing are not judged
        if kind in COMPANIONS and not before:
            continue
        there = set[str]()
        try:
            label = SELECTORS.get(kind, OURS)
            async for body in api.list(kind, namespace, labels=label, metadata_only=True, keep=trim):
                there.add(uid := body["metadata"]["uid"])
                if int(body["metadata"]["resourceVersion"]) < before.get(uid, 0):
                    swept.older.append(f"{kind} {body['metadata']['namespace']}/{body['metadata']['name']}")
                if cache.knows(body):
                    continue
                if kind in kinds:
                    swept.unseen[uid] = body
                elif uid in before and (key := cache.put(body)) is not None:
                    swept.touched.add(key)
        except ApiError as error:
            if kind not in COMPANIONS or error.status != 404:
                raise
            continue  # a gang's definition was removed: its objects cannot be made again before it is back
        swept.touched.update(cache.drop_uids(kind, before.keys() - there))
    hidden = api.list("Pod", namespace, labels=_HIDDEN, fields=_RUNNING, metadata_only=True, keep=trim)
    async for pod in hidden:
        if (key := cache.hide(pod)) is not None:
            swept.touched.add(key)
    return swept


def missed_changes(before: Mapping[str, Body], now: Mapping[str, Body], cache: Cache) -> list[str]:
    """Kind and name of objects that a watch has missed: unseen in a sweep, present in the next, and still unseen in
    that version.

    Both arguments are `Swept.unseen`. One sweep is not enough: the watch event may be under way.
    """
    return [
        f"{body['kind']} {body['metadata']['namespace']}/{body['metadata']['name']}"
        for uid, body in before.items()
        if uid in now and not cache.knows(body)
    ]
