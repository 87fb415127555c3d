"""Creates a job's pods, each once, and replaces those whose identifying labels are gone."""

import asyncio
from collections.abc import Callable
from typing import Any

from rlhf_api.contract.run import pods_each

from ...job.baseline import as_list, as_object
from ...job.names import pod_name
from ...job.snapshot import Job, is_marked
from ...kube.api import Api, Body
from ...kube.api_error import ApiError
from ..decide.describe import Event
from ..objects.companions import owned
from ..objects.pinned import Pinned
from ..objects.placement import placed
from ..objects.pod import NewPod, build_pod, without_requests
from ..objects.pod_sets import pod_sets, set_of
from ..watching.cache import Cache
from .ownership import name_taken, owned_by
from .recorder import Recorder

MOST_BODIES = 32
"""Maximum number of pods of all jobs that are being created: a body takes up to a megabyte."""

GONE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a node whose kubelet reports trouble, and of one whose kubelet does not report."""
EVICTION_SECONDS = 300
"""Kubernetes' own default (`--default-unreachable-toleration-seconds` of the API server), seconds."""


class PodClient:
    """Creates pods, and deletes those that have lost their labels. Bodies are built one by one, between which the event
    loop has its turn, and few are in memory at a time, whatever jobs ask for."""

    def __init__(self, api: Api, cache: Cache, recorder: Recorder) -> None:
        self._api, self._cache, self._recorder = api, cache, recorder
        self._places, self._building = asyncio.Semaphore(MOST_BODIES), asyncio.Lock()

    async def create(
        self, job: Job, pinned: Pinned, admitted: Body | None, flavors: dict[str, Body], new: NewPod
    ) -> None:
        """Creates the pod, placed by its job's Workload admission, if any. `flavors`: ResourceFlavors by name."""
        spec = pinned.config.spec
        own, size = set_of(spec, new.role, new.index), pods_each(spec, new.role)

        def place(body: Body) -> Body:
            return body if admitted is None else placed(body, own, admitted, flavors, size=size)

        async with self._places:
            await self._create(job, pinned, new, place)

    async def _build(self, job: Job, pinned: Pinned, new: NewPod) -> Body:
        async with self._building:
            body = build_pod(pinned, new, job.uid)
            await asyncio.sleep(0)
        return body

    async def _post(
        self,
        job: Job,
        pinned: Pinned,
        new: NewPod,
        place: Callable[[Body], Body] = lambda body: body,
        *,
        dry_run: bool = False,
    ) -> Body:
        """The pod as created; once more without its default request, if it is invalid with it: a LimitRange's default
        limit may be lower."""
        body = await self._build(job, pinned, new)
        try:
            return await self._api.create(owned(evictable(place(body)), job), dry_run=dry_run)
        except ApiError as error:
            if error.status != 422 or not pinned.defaults.requests:
                raise
            bare = await self._build(job, without_requests(pinned), new)
            if bare == body:
                raise
        return await self._api.create(owned(evictable(place(bare)), job), dry_run=dry_run)

    async def _create(self, job: Job, pinned: Pinned, new: NewPod, place: Callable[[Body], Body]) -> None:
        try:
            self._cache.put(await self._post(job, pinned, new, place))
        except ApiError as error:
            if error.status != 409:
                raise
            # A pod of this name exists that the cache has not seen yet.
            name = pod_name(job.name, new.role, new.index, new.rank)
            existing = await self._api.get("Pod", job.namespace, name)
            if not owned_by(existing, job):
                raise name_taken(existing, job) from None
            if not is_marked(existing, job.name):
                await self.replace(job, existing)
            self._cache.put(existing)

    async def accepted(self, job: Job, pinned: Pinned) -> bool:
        """True if the API server would take the first pod of each role now; none is made."""
        for kind in pod_sets(pinned.config.spec):
            async with self._places:
                new = NewPod(kind.role, kind.first, attempt=1, resume=False)
                try:
                    await self._post(job, pinned, new, dry_run=True)
                except ApiError as error:
                    if error.status not in (403, 409):  # a quota, or a pod of then: such a job waits
                        return False
        return True

    async def replace(self, job: Job, pod: Body) -> None:
        """Deletes a pod of the job whose labels were changed: it is no longer found by them, and holds its name and its
        GPUs."""
        name = pod["metadata"]["name"]
        if "deletionTimestamp" not in pod["metadata"]:
            message = f"{name} has lost labels of the operator; it is deleted, and made again if it is needed"
            await self._recorder.record(job.body, Event("Warning", "Relabelled", message))
            await self._api.delete("Pod", job.namespace, name, uid=pod["metadata"]["uid"])


def evictable(pod: Body) -> Body:
    """The pod, unless it tolerates everything without an end: then with an end for nodes that are gone, or with that
    of a toleration that names their taints.

    Kubernetes marks such a node with a `NoExecute` taint and asks the first toleration that matches for how long the
    pod stays. Without a match it adds one of 300 s of its own, but a toleration of everything matches, and has no end:
    it would hold the pod for ever.
    """
    tolerations = as_list(pod["spec"].get("tolerations"))
    of_all = [each for each in tolerations if not as_object(each).get("key")]
    first = next(filter(_executes, of_all), None)
    if first is None or as_object(first).get("tolerationSeconds") is not None:
        return pod
    named = [each for each in tolerations if each not in of_all]
    known = {each["key"] for each in filter(_executes, named)}
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTION_SECONDS}
        for key in GONE
        if key not in known
    ]
    return {**pod, "spec": {**pod["spec"], "tolerations": [*named, *ours, *of_all]}}


def _executes(toleration: Any) -> bool:
    """True if it matches taints that evict."""
    return as_object(toleration).get("effect") in (None, "", "NoExecute")
