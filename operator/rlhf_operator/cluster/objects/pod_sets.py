"""Sets of a job's pods that are alike: one of each role, or one for each kind of teacher's pods; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rlhf_api.contract.run import pod_roles, replicas
from rlhf_api.contract.teachers import Share, shares_of
from rlhf_api.errors.problem import Problem, show
from rlhf_api.estimate.resources import host_memory
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...job.names import QUEUE

MOST_SETS = 8
"""Most sets of pods that Kueue takes."""


@dataclass(frozen=True)
class PodSet:
    """The pods of `count` replicas of a role, from the one with index `first` on."""

    name: str
    role: Role
    first: int
    count: int


def pod_sets(spec: Spec) -> list[PodSet]:
    """The sets of all of the job's pods."""
    sets: list[PodSet] = []
    for role in pod_roles(spec):
        kinds = [[*same] for _, same in groupby(shares_of(spec), _pods)] if role is Role.REFERENCE else []
        if len(kinds) < 2:
            sets.append(PodSet(role.value, role, 0, replicas(spec, role)))
        else:
            sets += [_of_teachers(role, number, kind) for number, kind in enumerate(kinds)]
    return sets


def too_many_sets(spec: Spec, queue: str | None) -> Problem | None:
    """The problem of a job in a queue whose pods are of more kinds than Kueue takes; None without a problem."""
    if queue is None or (count := len(pod_sets(spec))) <= MOST_SETS:
        return None
    message = (
        f"a Workload of Kueue has at most {MOST_SETS} sets of pods, and this job's pods are of {count} kinds"
    )
    hint = "let teachers whose pods are alike follow each other in spec.distillation.teachers, or use fewer kinds"
    return Problem(f"metadata.labels[{show(QUEUE)}]", f"{message}; {hint}")


def set_of(spec: Spec, role: Role, index: int) -> PodSet:
    """The set of a replica's pods; of the generators also that of one beyond them."""
    return next(each for each in reversed(pod_sets(spec)) if each.role is role and each.first <= index)


def _pods(share: Share) -> tuple[object, ...]:
    """Pod settings and memory, by which a teacher's pods differ from another's."""
    return share.spec.reference.pods, host_memory(share.spec, Role.REFERENCE)


def _of_teachers(role: Role, number: int, kind: Sequence[Share]) -> PodSet:
    first = kind[0].processes.start
    return PodSet(f"{role.value}-{number}", role, first, kind[-1].processes.stop - first)
