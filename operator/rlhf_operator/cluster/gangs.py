"""Gang schedulers: all pods of a job are scheduled at once, or none. A new one is a class here and a line in GANGS."""

from collections.abc import Sequence
from typing import Any

from rlhf_api.roles import Role
from rlhf_api.run import RunConfig, places, roles_of

from .names import common_labels
from .snapshot import Pod

Body = dict[str, Any]


def members(config: RunConfig, pods: Sequence[Pod]) -> int:
    """Number of pods that are scheduled together: all of the job, or of one that runs the trainers and who has a node.
    A trainer that starts again would wait for generators for which there is no room.
    """
    whole = sum(len(places(config.spec, role)) for role in roles_of(config.spec))
    others = sum(pod.role is not Role.TRAINER and pod.node is not None and pod.ended is None for pod in pods)
    return min(whole, len(places(config.spec, Role.TRAINER)) + others) if others else whole


class Gang:
    """Gang scheduling: labels and objects by which a scheduler groups pods; this base does nothing."""

    def group(self, _config: RunConfig, _size: int) -> Body | None:
        """The group's object, named after the job, of `size` pods."""
        return None

    def join(self, pod: Body, _job: str) -> Body:
        """The pod as a member of the group."""
        return pod


class Volcano(Gang):
    """Volcano's PodGroup, in the job's queue if it names one."""

    def group(self, config: RunConfig, size: int) -> Body:
        queue = {"queue": config.spec.scheduling.queue} if config.spec.scheduling.queue else {}
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": config.job, "labels": common_labels(config.job)},
            "spec": {"minMember": size, **queue},
        }

    def join(self, pod: Body, job: str) -> Body:
        annotations = {**pod["metadata"].get("annotations", {}), "scheduling.k8s.io/group-name": job}
        metadata = {**pod["metadata"], "annotations": annotations}
        return {**pod, "metadata": metadata, "spec": {**pod["spec"], "schedulerName": "volcano"}}


class Coscheduling(Gang):
    """The coscheduling plugin of kubernetes-sigs/scheduler-plugins, with the scheduler name of its chart."""

    def group(self, config: RunConfig, size: int) -> Body:
        return {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": config.job, "labels": common_labels(config.job)},
            "spec": {"minMember": size},
        }

    def join(self, pod: Body, job: str) -> Body:
        labels = {**pod["metadata"]["labels"], "scheduling.x-k8s.io/pod-group": job}
        metadata = {**pod["metadata"], "labels": labels}
        scheduler = {"schedulerName": "scheduler-plugins-scheduler"}
        return {**pod, "metadata": metadata, "spec": {**pod["spec"], **scheduler}}


GANGS: dict[str, Gang] = {"none": Gang(), "volcano": Volcano(), "coscheduling": Coscheduling()}
