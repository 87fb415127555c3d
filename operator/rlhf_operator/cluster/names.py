"""Names and labels of what belongs to a job."""

from rlhf_api.roles import Role
from rlhf_api.run import process_name

ROLE = "rlhf.dev/role"
INDEX = "rlhf.dev/index"
RANK = "rlhf.dev/rank"
"""On the pods of generators that span several; the first, 0, has the API."""
ATTEMPT = "rlhf.dev/attempt"
JOB = "rlhf.dev/job"
CHECKPOINT = "rlhf.dev/checkpoint"
"""An annotation of the job: each new value asks for a checkpoint."""
CONFIG = "rlhf.dev/config"
"""An annotation of a Workload: the configuration whose pods it asks quota for."""
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
"""Label of a job: the WorkloadPriorityClass by which it waits."""
MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "rlhf-operator"


def pod_name(job: str, role: Role, index: int, rank: int = 0) -> str:
    return f"{job}-{process_name(role, index, rank)}"


def service_name(job: str) -> str:
    """The headless service that gives the job's pods their names in DNS."""
    return f"{job}-rlhf"


def token_name(job: str, uid: str) -> str:
    """The Secret with the job's token: never that of an earlier job of its name, which is about to be deleted."""
    return f"{job}-token-{uid[:8]}"


def common_labels(job: str) -> dict[str, str]:
    """On everything that belongs to the job."""
    return {"app.kubernetes.io/name": "rlhf-job", MANAGED_BY: OPERATOR, JOB: job}


def role_labels(job: str, role: Role) -> dict[str, str]:
    return {**common_labels(job), "app.kubernetes.io/component": role.value, ROLE: role.value}


def selector(labels: dict[str, str]) -> str:
    """As `kubectl -l` takes it."""
    return ",".join(f"{key}={value}" for key, value in labels.items())
