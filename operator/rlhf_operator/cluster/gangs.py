"""Gang schedulers: all pods of a job are scheduled at once, or none. A new one is a class here and a line in GANGS."""

from typing import Any

from rlhf_api.run import RunConfig, places, roles_of

from .names import common_labels

Body = dict[str, Any]


def members(config: RunConfig) -> int:
    """Number of pods of the job."""
    return sum(len(places(config.spec, role)) for role in roles_of(config.spec))


class Gang:
    """Gang scheduling: labels and objects by which a scheduler groups pods; this base does nothing."""

    def group(self, _config: RunConfig) -> Body | None:
        """The group's object, named after the job."""
        return None

    def join(self, pod: Body, _job: str) -> Body:
        """The pod as a member of the group."""
        return pod


class Volcano(Gang):
    """Volcano's PodGroup, in the job's queue if it names one."""

    def group(self, config: RunConfig) -> Body:
        queue = {"queue": config.spec.scheduling.queue} if config.spec.scheduling.queue else {}
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": config.job, "labels": common_labels(config.job)},
            "spec": {"minMember": members(config), **queue},
        }

    def join(self, pod: Body, job: str) -> Body:
        annotations = {**pod["metadata"].get("annotations", {}), "scheduling.k8s.io/group-name": job}
        metadata = {**pod["metadata"], "annotations": annotations}
        return {**pod, "metadata": metadata, "spec": {**pod["spec"], "schedulerName": "volcano"}}


class Coscheduling(Gang):
    """The coscheduling plugin of kubernetes-sigs/scheduler-plugins, with the scheduler name of its chart."""

    def group(self, config: RunConfig) -> Body:
        return {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": config.job, "labels": common_labels(config.job)},
            "spec": {"minMember": members(config)},
        }

    def join(self, pod: Body, job: str) -> Body:
        labels = {**pod["metadata"]["labels"], "scheduling.x-k8s.io/pod-group": job}
        metadata = {**pod["metadata"], "labels": labels}
        scheduler = {"schedulerName": "scheduler-plugins-scheduler"}
        return {**pod, "metadata": metadata, "spec": {**pod["spec"], **scheduler}}


GANGS: dict[str, Gang] = {"none": Gang(), "volcano": Volcano(), "coscheduling": Coscheduling()}
