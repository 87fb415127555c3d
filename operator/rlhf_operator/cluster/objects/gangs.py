"""Gang schedulers: all pods of a job are scheduled at once, or none. A new one is a class here and a line in GANGS."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.contract.run import RunConfig, places, pod_roles
from rlhf_api.roles import Role

from ...job.names import common_labels
from ...job.snapshot import Pod

Body = dict[str, Any]


def members(config: RunConfig, pods: Sequence[Pod]) -> dict[Role, int]:
    """Number of pods of each role that are scheduled together: all of the job, or of one that runs the trainers and who
    has a node. A trainer that starts again would wait for generators for which there is no room.
    """
    whole = {role: len(places(config.spec, role)) for role in pod_roles(config.spec)}
    there = Counter(pod.role for pod in pods if pod.node is not None and pod.ended is None)
    del there[Role.TRAINER]
    if not there:
        return whole
    return {role: n if role is Role.TRAINER else min(n, there[role]) for role, n in whole.items()}


@dataclass(frozen=True)
class Needs:
    """Pods, priority and resources that a group is scheduled with."""

    size: int
    priority: str | None
    """Their PriorityClass."""
    resources: Mapping[str, str]
    """The sum of their requests, as quantities."""


class Gang:
    """Gang scheduling: labels and objects by which a scheduler groups pods; this base does nothing."""

    scheduler: str | None = None
    """Name of the scheduler that places the pods; the cluster's own unless given."""

    def group(self, _config: RunConfig, _needs: Needs) -> Body | None:
        """The group's object, named after the job."""
        return None

    def join(self, pod: Body, _job: str) -> Body:
        """The pod as a member of the group."""
        return pod


class Volcano(Gang):
    """Volcano's PodGroup, in the job's queue if it names one. Its order among others and the room that it needs are the
    group's, whatever its pods say."""

    scheduler = "volcano"

    def group(self, config: RunConfig, needs: Needs) -> Body:
        more = {
            "queue": config.spec.scheduling.queue,
            "priorityClassName": needs.priority,
            "minResources": dict(needs.resources),
        }
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": config.job, "labels": common_labels(config.job)},
            "spec": {"minMember": needs.size, **{key: value for key, value in more.items() if value}},
        }

    def join(self, pod: Body, job: str) -> Body:
        annotations = {**pod["metadata"].get("annotations", {}), "scheduling.k8s.io/group-name": job}
        metadata = {**pod["metadata"], "annotations": annotations}
        return {**pod, "metadata": metadata, "spec": {**pod["spec"], "schedulerName": self.scheduler}}


class Coscheduling(Gang):
    """The coscheduling plugin of kubernetes-sigs/scheduler-plugins, with the scheduler name of its chart."""

    scheduler = "scheduler-plugins-scheduler"

    def group(self, config: RunConfig, needs: Needs) -> Body:
        return {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": config.job, "labels": common_labels(config.job)},
            "spec": {"minMember": needs.size},
        }

    def join(self, pod: Body, job: str) -> Body:
        labels = {**pod["metadata"]["labels"], "scheduling.x-k8s.io/pod-group": job}
        metadata = {**pod["metadata"], "labels": labels}
        return {**pod, "metadata": metadata, "spec": {**pod["spec"], "schedulerName": self.scheduler}}


class Kubernetes(Gang):
    """The scheduler's own PodGroup, of Kubernetes 1.37 on; pods name it in a field of their spec."""

    def group(self, config: RunConfig, needs: Needs) -> Body:
        priority = {"priorityClassName": needs.priority} if needs.priority else {}
        return {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": config.job, "labels": common_labels(config.job)},
            "spec": {"schedulingPolicy": {"gang": {"minCount": needs.size}}, **priority},
        }

    def join(self, pod: Body, job: str) -> Body:
        return {**pod, "spec": {**pod["spec"], "schedulingGroup": {"podGroupName": job}}}


GANGS: dict[str, Gang] = {
    "none": Gang(),
    "kubernetes": Kubernetes(),
    "volcano": Volcano(),
    "coscheduling": Coscheduling(),
}
