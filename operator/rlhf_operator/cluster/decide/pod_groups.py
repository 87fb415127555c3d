"""Groups a job's pods by role, index and attempt, and maps them to process states; pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_api.contract.run import EXIT_SUSPENDED, Member, Membership, places, pods_each, replicas, roles_of
from rlhf_api.contract.status import ClusterStatus
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...job.names import token_name
from ...job.pod_status import seconds
from ...job.snapshot import Job, Pod
from ...supervision.process_state import SIGTERMED, Ended, ProcessState
from ...supervision.progress_deadline import Silence, silence

LOST_SECONDS = 30.0
"""Time beyond its grace period after which a lingering pod is given up, seconds."""

KUBELET_SECONDS = 300.0
"""Time beyond its progress deadline that a trainer has in a pod that others share, whose kubelet ends its container
alone; after it the whole pod is made again."""
NO_CONFIG = "CreateContainerConfigError"
"""Kubelets' reason for a container whose environment refers to a missing Secret or ConfigMap."""


@dataclass(frozen=True)
class PodGroups:
    """A job's pods; each is in exactly one group."""

    current: Mapping[tuple[Role, int, int], Pod]
    """The desired pods, by role, index and rank."""
    counted: tuple[Pod, ...]
    """Ended pods that are being replaced: counted as restarts, but for sandboxes that have had their episode."""
    surplus: tuple[Pod, ...]
    """Pods of roles or numbers that are not desired, or of an earlier attempt."""

    @property
    def pods(self) -> tuple[Pod, ...]:
        return (*self.current.values(), *self.counted, *self.surplus)

    def counted_of(self, role: Role) -> list[Pod]:
        """The role's pods that are being replaced."""
        return [pod for pod in self.counted if pod.role is role]

    def of(self, role: Role) -> list[Pod]:
        """Every pod of a role, desired or not."""
        return [pod for pod in self.pods if pod.role is role]


def with_newest_attempt(cluster: ClusterStatus, pods: Sequence[Pod]) -> ClusterStatus:
    """The cluster's status with the newest attempt that has trainer pods. Its status was written before the pods; if it
    could not be stored, only an operator that has ended knew it."""
    newest = max((pod.attempt for pod in pods if pod.role is Role.TRAINER), default=0)
    if newest <= cluster.attempt:
        return cluster
    return cluster.model_copy(update={"attempt": newest, "unmade": None})


def group_pods(spec: Spec, cluster: ClusterStatus, pods: Sequence[Pod]) -> PodGroups:
    current: dict[tuple[Role, int, int], Pod] = {}
    counted, surplus = list[Pod](), list[Pod]()
    roles = set(roles_of(spec))
    for pod in sorted(pods, key=lambda pod: pod.name):
        if pod.uid in cluster.counted or pod.is_spent:
            counted.append(pod)
        elif pod.role not in roles or not _is_in_plan(spec, cluster, pod):
            surplus.append(pod)
        else:
            current[pod.role, pod.index, pod.rank] = pod
    return PodGroups(current, tuple(counted), tuple(surplus))


def still_there(counted: Collection[str], pods: Sequence[Pod]) -> tuple[str, ...]:
    """Of the uids of ended pods that are counted, those whose ends could be seen again: of pods that are there, and of
    earlier starts in them."""
    uids = {uid for pod in pods for uid in (pod.uid, pod.last_uid)}
    return tuple(sorted(uids.intersection(counted)))


def _is_in_plan(spec: Spec, cluster: ClusterStatus, pod: Pod) -> bool:
    if pod.role is Role.TRAINER and pod.attempt != cluster.attempt:
        return False
    return pod.index < replicas(spec, pod.role) and pod.rank < pods_each(spec, pod.role)


def process_states(
    spec: Spec, groups: PodGroups, *, begun: bool, suspending: bool, last: float
) -> list[ProcessState]:
    """States of the job's processes. `begun`: the present attempt's trainer pods were created, so a missing one was
    deleted, at the earliest after the `last` start. The same holds for a generator's further pods once the first has
    been up, or is over or gone: it is created before the others, and answers when all exist. A replica is ready only
    while the nodes of all its pods report."""
    replaced = {pod.replica: pod for pod in groups.counted}
    waiting = {p.replica for p in groups.current.values() if p.rank == 0 and not p.up and p.ended is None}
    met = {pod.replica for pod in groups.current.values()} - waiting
    unreachable = {pod.replica for pod in groups.current.values() if pod.unreachable}
    states = []
    for role in roles_of(spec):
        for index, rank in places(spec, role):
            pod, going = groups.current.get((role, index, rank)), replaced.get((role, index))
            if pod is not None:
                end = pod.ended if suspending or pod.ended is None else _not_suspended(pod.ended)
                ready = pod.ready and pod.replica not in unreachable
                state = ProcessState(role, index, pod.started, ready, end, node=pod.node or "")
            elif going is not None:
                state = ProcessState(role, index, going.started)
            elif role is Role.TRAINER and begun:
                state = ProcessState(role, index, 0.0, ended=_deleted_end(groups.of(role), last))
            elif (role, index) in met:
                peers = [each for each in groups.of(role) if each.index == index]
                state = ProcessState(role, index, 0.0, ended=_deleted_end(peers, 0.0))
            else:
                state = ProcessState(role, index)
            states.append(replace(state, rank=rank))
    return states


def trainer_silence(
    spec: Spec,
    processes: Sequence[ProcessState],
    groups: PodGroups,
    cluster: ClusterStatus,
    activity: str | None,
) -> Silence | None:
    """The silence of the present attempt's trainers; None while one of them is being replaced, or has not begun: it
    waits for a node, for its image or for a model."""
    waits = any(pod.role is Role.TRAINER and not pod.begun for pod in groups.current.values())
    if cluster.progress_time is None or groups.counted_of(Role.TRAINER) or waits:
        return None
    return silence(spec, processes, seconds(cluster.progress_time), activity)


def mark_hung_trainers(processes: Sequence[ProcessState], end: Ended | None) -> list[ProcessState]:
    """The processes, with the trainers as ended if they hang; their pods are deleted as those of a gang that failed."""
    if end is None:
        return list(processes)
    return [replace(s, ended=end) if s.role is Role.TRAINER and s.ended is None else s for s in processes]


def is_lost(pod: Pod, now: float) -> bool:
    """True if its kubelet should have ended the pod long ago: its node is gone, and the pod's name is needed."""
    return _is_overdue(pod, now) and not pod.held_by


def is_held_by_finalizer(pod: Pod, now: float) -> bool:
    """True if only a finalizer has kept the pod, and its name, for long."""
    return _is_overdue(pod, now) and bool(pod.held_by)


def _is_overdue(pod: Pod, now: float) -> bool:
    return pod.deletion_deadline is not None and now > pod.deletion_deadline + LOST_SECONDS


def is_token_missing(job: Job, pods: Sequence[Pod]) -> bool:
    """True if a kubelet has not found the Secret of a pod's token."""
    missing = f'{NO_CONFIG}: secret "%s" not found'
    return any(
        pod.ended is None
        and (pod.waiting_reason or "").startswith(missing % token_name(job.name, job.uid, pod.role))
        for pod in pods
    )


def _is_offered(pod: Pod) -> bool:
    """False of a sandbox that has yet to serve: whoever claims one takes another."""
    return pod.ready or pod.role is not Role.SANDBOX


def _deleted_end(peers: Sequence[Pod], last: float) -> Ended:
    """End of a deleted pod, not before its peers' ends: a pod deleted because of them is not the first failure."""
    others = [pod.ended.at for pod in peers if pod.ended]
    return Ended(max([last, *others]), SIGTERMED, "was deleted", disrupted=True)


def _not_suspended(ended: Ended) -> Ended:
    """The end of a trainer that checkpointed and exited without a suspend of the job, as a disruption: its node had
    asked it to stop."""
    if ended.code != EXIT_SUSPENDED:
        return ended
    return replace(ended, code=SIGTERMED, reason="was stopped, after a checkpoint", disrupted=True)


def evicted_pods(groups: PodGroups) -> list[Pod]:
    """Pods of generators that lose another of their pods: the first finishes its requests, then all end."""
    leaving = {pod.replica for pod in groups.current.values() if pod.deletion_deadline is not None}
    return [pod for pod in groups.current.values() if pod.replica in leaving and pod.ended is None]


def membership(groups: PodGroups, spec: Spec) -> Membership:
    """Members that can serve the trainer; those being deleted drain. Without a node are those for which the scheduler
    has found none, and those that have no pod, as where a quota refuses it."""
    staying = set(groups.current.values())
    going = {pod.replica for pod in staying if pod.deletion_deadline is not None or pod.ended}
    members = [
        Member(
            role=pod.role,
            name=f"{pod.role.value}-{pod.index}",
            uid=pod.uid,
            address=pod.url,
            draining=pod.replica in going or pod.deletion_deadline is not None or pod not in staying,
        )
        for pod in groups.pods
        if pod.role is not Role.TRAINER and pod.rank == 0 and pod.serving and _is_offered(pod)
    ]
    there = {pod.replica for pod in groups.pods} - {pod.replica for pod in staying if not pod.scheduled}
    required = {(role, index) for role in roles_of(spec) for index in range(replicas(spec, role))}
    return Membership(
        members=tuple(sorted(members, key=lambda m: (m.name, m.uid))),
        unplaced=tuple(sorted(role for role, _ in required - there if role is not Role.TRAINER)),
        exhausted=tuple(sorted(pod.uid for pod in groups.pods if pod.is_exhausted)),
    )
