"""Names and labels of a job's objects."""

import hashlib

from rlhf_api.contract.run import process_name
from rlhf_api.roles import UNTRUSTED, Role
from rlhf_api.sections.pods import Gpu

ROLE = "rlhf.dev/role"
INDEX = "rlhf.dev/index"
RANK = "rlhf.dev/rank"
"""Label of a multi-pod generator's pods: rank in the generator; rank 0 has the API."""
ATTEMPT = "rlhf.dev/attempt"
JOB = "rlhf.dev/job"
CHECKPOINT = "rlhf.dev/checkpoint"
"""Annotation of a job: each new value requests a checkpoint."""
CONFIG = "rlhf.dev/config"
"""Annotation of a Workload: name of the configuration of the pods for which it requests quota."""
CONTROLLER = "rlhf.dev/operator"
"""This operator, in a job's `spec.managedBy`."""
QUEUE = "kueue.x-k8s.io/queue-name"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""In a job's `spec.managedBy`: Kueue runs it on another cluster, where its copy has the label `ORIGIN`."""
ORIGIN = "kueue.x-k8s.io/multikueue-origin"
PRIORITY = "kueue.x-k8s.io/priority-class"
"""Label of a job: the WorkloadPriorityClass of its Workload, which notes it as an annotation."""
QUEUE_GATE = "kueue.x-k8s.io/admission"
"""Scheduling gate of pods that Kueue has put into a queue, each by itself."""
MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "rlhf-operator"


GPU_CLAIM = "rlhf-gpus"
"""Name of the claim of a pod whose GPUs are claimed from a DeviceClass."""


def pod_name(job: str, role: Role, index: int, rank: int = 0) -> str:
    return f"{job}-{process_name(role, index, rank)}"


def service_name(job: str) -> str:
    """The headless service that gives the job's pods their DNS names."""
    return f"{job}-rlhf"


def claim_template_name(job: str, uid: str, role: Role, gpu: Gpu) -> str:
    """The ResourceClaimTemplate of a role's GPUs, which cannot be changed: another claim has another name, and so has
    that of an earlier job of this name."""
    digest = hashlib.sha256(f"{uid} {gpu.count} {gpu.device_class}".encode()).hexdigest()
    return f"{job}-{role.value}-gpus-{digest[:8]}"


def token_name(job: str, uid: str, role: Role) -> str:
    """The Secret with a role's token; the uid tells it from that of an earlier job of the same name. It never changes,
    so roles that have a token of their own have a Secret of their own: a job may get such a role later."""
    of_job = f"{job}-token-{uid[:8]}"
    return f"{of_job}-{role.value}" if role in UNTRUSTED else of_job


def policy_name(job: str, uid: str) -> str:
    """The job's NetworkPolicy; nobody else's has the uid in its name by chance."""
    return f"{job}-rlhf-{uid[:8]}"


def environment_policy_name(job: str, uid: str) -> str:
    """The NetworkPolicy of the job's environments."""
    return f"{policy_name(job, uid)}-environment"


def sandbox_policy_name(job: str, uid: str) -> str:
    """The NetworkPolicy of the job's sandboxes."""
    return f"{policy_name(job, uid)}-sandbox"


def sandbox_files_name(job: str, uid: str) -> str:
    """The ConfigMap with the server of the job's sandboxes."""
    return f"{job}-sandbox-{uid[:8]}"


def common_labels(job: str) -> dict[str, str]:
    """Labels of every object of the job."""
    return {"app.kubernetes.io/name": "rlhf-job", MANAGED_BY: OPERATOR, JOB: job}


def role_labels(job: str, role: Role) -> dict[str, str]:
    return {**common_labels(job), "app.kubernetes.io/component": role.value, ROLE: role.value}


def selector(labels: dict[str, str]) -> str:
    """A label selector in the syntax of `kubectl -l`."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
