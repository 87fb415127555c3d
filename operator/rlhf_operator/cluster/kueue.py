"""Kueue: a job with a queue's label holds a Workload, and runs while that is admitted; pure.

The Workload stands for the whole job, so that its quota is granted at once and taken back at once. Node labels of
resource flavors are not put on the pods: use flavors without them, or name the nodes in `spec.pods`.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal

from rlhf_api.run import replicas, roles_of

from .names import common_labels
from .pinned import Pinned
from .pod import build_pod
from .snapshot import Job

Body = dict[str, Any]

Quota = Literal["none", "absent", "waiting", "admitted", "evicted"]
"""`none`: the job is in no queue; `absent`: it has no Workload yet."""


def quota(job: Job, workload: Mapping[str, Any] | None) -> Quota:
    """State of the job's Workload in its queue."""
    if job.queue is None:
        return "none"
    if workload is None:
        return "absent"
    held = {c["type"] for c in workload.get("status", {}).get("conditions", ()) if c["status"] == "True"}
    if "Evicted" in held:
        return "evicted"
    return "admitted" if "Admitted" in held else "waiting"


def workload(job: Job, pinned: Pinned) -> Body:
    """The Workload that Kueue admits: a pod set for each role, with its pods as they would be."""
    config = pinned.config
    template = functools.partial(
        build_pod,
        config,
        index=0,
        attempt=0,
        resume=False,
        config_name="",
        token_secret="",
        defaults=pinned.defaults,
    )
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": job.name, "labels": common_labels(job.name)},
        "spec": {
            "queueName": job.queue,
            "podSets": [
                {
                    "name": role.value,
                    "count": replicas(config.spec, role),
                    "template": {"spec": template(role)["spec"]},
                }
                for role in roles_of(config.spec)
            ],
        },
    }
