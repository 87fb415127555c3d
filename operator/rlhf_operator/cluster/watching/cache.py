"""Informer cache of jobs and of the objects that belong to them: read instead of asking the API server."""

import json
import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.contract.status import ENDED

from ...job.names import JOB
from ...job.trimmed import trim
from ...kube.api import Body, Key
from ...kube.kinds import kind_of

COMPANIONS = (
    "ConfigMap",
    "NetworkPolicy",
    "PodGroup.scheduling.k8s.io",
    "PodGroup.scheduling.volcano.sh",
    "PodGroup.scheduling.x-k8s.io",
    "ResourceClaimTemplate",
    "Service",
)
"""Kinds of a job's objects beside its pods; of these only the resourceVersion is cached."""
AT_REST = (*ENDED, "Suspended")
"""Phases of jobs that need no reconcile until something happens to them."""
_TOMBSTONES = 4096


@dataclass(frozen=True, slots=True)
class _Cached:
    uid: str
    version: int
    text: str
    """JSON takes a quarter of the memory that dictionaries do; readers get their own copy. Empty for companions."""


class Cache:
    """Objects as delivered by watches and by the replies to our own writes, in any order: the newest version is
    kept."""

    def __init__(self) -> None:
        self._cached: dict[str, dict[Key, dict[str, _Cached]]] = defaultdict(dict)  # kind, job, name
        self._dropped: OrderedDict[str, float] = OrderedDict()
        """Last resourceVersions of what was deleted, by uid, infinite if unknown. What a watch with a label selector
        tells to be deleted may only have lost its label: later versions show that it is there."""
        self._resting: set[Key] = set()
        self._hidden: dict[Key, list[Body]] = {}
        self._departed: dict[Key, list[Body]] = {}

    def put(self, body: Mapping[str, Any]) -> Key | None:
        """Stores the object; returns the job that it belongs to, or None if nothing in it is new for the job."""
        meta, key = body["metadata"], job_of(body)
        if key is None or int(meta["resourceVersion"]) <= self._dropped.get(meta["uid"], -1):
            return None
        kind = kind_of(body)
        same = self._cached[kind].setdefault(key, {})
        known, version = same.get(meta["name"]), int(meta["resourceVersion"])
        if known is not None and known.version >= version:
            return None
        trimmed = trim(body)
        text = "" if kind in COMPANIONS else json.dumps(trimmed, separators=(",", ":"))
        same[meta["name"]] = _Cached(meta["uid"], version, text)
        if kind == "RLHFJob":
            rests = (body.get("status") or {}).get("phase") in AT_REST
            (self._resting.add if rests else self._resting.discard)(key)
        if (
            kind == "RLHFJob"
            and known is not None
            and _user_part(json.loads(known.text)) == _user_part(trimmed)
        ):
            return None  # only its status is another, which we write: watches often tell of it before the answer comes
        return key

    def drop(self, body: Mapping[str, Any]) -> Key | None:
        """Removes a deleted object, also if a reply from before the deletion arrives later."""
        meta, key = body["metadata"], job_of(body)
        self._bury(meta["uid"], int(meta["resourceVersion"]))
        kind = kind_of(body)
        same = self._cached[kind].get(key, {}) if key else {}
        if key is None or meta["name"] not in same or same[meta["name"]].uid != meta["uid"]:
            return None
        del same[meta["name"]]
        if kind == "RLHFJob":
            self._resting.discard(key)
        elif kind == "Pod":
            self._departed.setdefault(key, []).append(trim(body))
        if not same:
            del self._cached[kind][key]
        return key

    def uids(self, kind: str, namespace: str | None = None) -> set[str]:
        """Uids of the kind's objects in one namespace, or in all."""
        return {*self.versions(kind, namespace)}

    def versions(self, kind: str, namespace: str | None = None) -> dict[str, int]:
        """Newest resourceVersions of the kind's objects, by uid."""
        return {
            cached.uid: cached.version
            for key, same in self._cached[kind].items()
            if namespace in (None, key[0])
            for cached in same.values()
        }

    def leave(self, namespace: str) -> set[Key]:
        """Removes all objects of a namespace, which may be listed again later; returns its jobs."""
        left = {key for same in self._cached.values() for key in same if key[0] == namespace}
        for same in self._cached.values():
            for key in left:
                same.pop(key, None)
        self._resting -= left
        return left

    def drop_uids(self, kind: str, uids: Iterable[str]) -> set[Key]:
        """Removes the objects with these uids; returns the jobs that they belonged to."""
        removed, touched, left = set(uids), set(), {}
        for uid in removed if kind not in COMPANIONS else ():  # which may have lost their label alone
            self._bury(uid, math.inf)
        for key, same in self._cached[kind].items():
            stay = {name: cached for name, cached in same.items() if cached.uid not in removed}
            if len(stay) < len(same):
                touched.add(key)
            if stay:
                left[key] = stay
        self._cached[kind] = left
        if kind == "RLHFJob":
            self._resting -= touched
        return touched

    def keys(self) -> list[Key]:
        """All jobs."""
        return list(self._cached["RLHFJob"])

    def active_keys(self) -> list[Key]:
        """Jobs that are not at rest."""
        return [key for key in self._cached["RLHFJob"] if key not in self._resting]

    @property
    def active(self) -> int:
        """Number of `active_keys`."""
        return len(self._cached["RLHFJob"]) - len(self._resting)

    def job(self, key: Key) -> Body | None:
        return next(iter(self._read("RLHFJob", key)), None)

    def pods(self, key: Key) -> list[Body]:
        """Pods that name the job as their owner or in their label, whoever created them."""
        return self._read("Pod", key)

    def hide(self, pod: Body) -> Key | None:
        """Keeps metadata of a pod that has lost the label that watches select; returns the job that it belongs to."""
        key = job_of(pod)
        if key in self._cached["RLHFJob"]:
            self._hidden.setdefault(key, []).append(pod)
            return key
        return None

    def take_hidden(self, key: Key) -> list[Body]:
        """Returns and forgets the job's hidden pods: the next listing finds those that remain."""
        return self._hidden.pop(key, [])

    def take_departed(self, key: Key) -> list[Body]:
        """Returns and forgets the job's pods that were deleted since the last call, as they were in the end."""
        return self._departed.pop(key, [])

    def version(self, kind: str, key: Key, name: str) -> int | None:
        """Newest resourceVersion of this object of the job; None if it is not there."""
        cached = self._cached[kind].get(key, {}).get(name)
        return None if cached is None else cached.version

    def knows(self, body: Mapping[str, Any]) -> bool:
        """True if this version of an object, a later one, or its deletion was seen; also for one that belongs to no
        job.
        """
        meta, key = body["metadata"], job_of(body)
        if key is None or int(meta["resourceVersion"]) <= self._dropped.get(meta["uid"], -1):
            return True
        cached = self._cached[kind_of(body)].get(key, {}).get(meta["name"])
        return cached is not None and cached.version >= int(meta["resourceVersion"])

    def workloads(self, key: Key) -> list[Body]:
        """Workloads that name the job as their owner or in their label."""
        return self._read("Workload", key)

    def _read(self, kind: str, key: Key) -> list[Body]:
        return [json.loads(cached.text) for cached in self._cached[kind].get(key, {}).values()]

    def _bury(self, uid: str, version: float) -> None:
        self._dropped[uid] = version
        if len(self._dropped) > _TOMBSTONES:
            self._dropped.popitem(last=False)


def job_of(body: Mapping[str, Any]) -> Key | None:
    """The job that an object is, or belongs to by its owner reference; without one, by its label. A pod whose label
    somebody removes still belongs to its job, as a change of it."""
    meta = body["metadata"]
    owners = [owner["name"] for owner in meta.get("ownerReferences") or () if owner["kind"] == "RLHFJob"]
    label = (meta.get("labels") or {}).get(JOB)
    name = meta["name"] if body["kind"] == "RLHFJob" else next(iter(owners), label)
    return (meta["namespace"], name) if name else None


def _user_part(job: Body) -> Body:
    """The part of a job written by users: spec and metadata, without the resourceVersion."""
    metadata = {k: v for k, v in job["metadata"].items() if k != "resourceVersion"}
    return {"metadata": metadata, "spec": job.get("spec")}
