"""Next step of a job, a pure function of one observation. This page and `reconcile.py` tell the whole story."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_api.contract.status import ENDED, ClusterStatus, JobStatus
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...status.job_status import first_status
from ...supervision.budget import Restarts, totals
from ...supervision.process_state import Finish, ProcessState
from ...supervision.progress_deadline import Silence
from ...supervision.restart_policy import decide, pause_left
from ..objects.node_avoidance import describe_avoidance, node_failures
from ..observe.observed import Observed
from . import autoscale, deadlines
from .conditions import ReconcileState
from .consequences import (
    Consequences,
    Deletion,
    apply_actions,
    clear_unmade_attempt,
    deletion,
    last_deletion,
    read_windows,
    write_windows,
)
from .describe import Event, describe
from .next_step import POLL_SECONDS, Plan, deletions
from .pod_groups import (
    KUBELET_SECONDS,
    PodGroups,
    evicted_pods,
    group_pods,
    is_token_missing,
    mark_hung_trainers,
    membership,
    process_states,
    still_there,
    trainer_silence,
    with_newest_attempt,
)
from .stopping import is_retained, plan_ended_job, report_if_admitted, suspend


@dataclass(frozen=True)
class _Facts:
    """Facts that follow from an observation and the status before it."""

    cluster: ClusterStatus
    groups: PodGroups
    restarts: Mapping[Role, Restarts]
    processes: Sequence[ProcessState]
    silence: Silence | None
    """The trainer's silence, which ends it once it is too long."""
    waited: bool
    """True if the pods that had to end before a start were seen to, and counted."""
    unmade: bool
    """The present attempt's trainer pods were not all seen on their nodes, and none is left."""


def plan(observed: Observed, now: datetime.datetime) -> Plan:
    """The next step of a job whose spec is valid."""
    spec = observed.desired.spec
    before = observed.job.status or first_status(spec, None)
    if before.phase in ENDED:
        return plan_ended_job(observed, before, now)
    facts = _gather_facts(observed, before, now)
    finish = deadlines.find_end(observed, before, facts.cluster, now)
    if finish is None and _is_to_stop(observed):
        return suspend(observed, before, facts.cluster, facts.groups, facts.processes, now)
    # Who starts too slowly is ended by the kubelet's startup probe.
    actions = (
        (finish,)
        if finish
        else decide(
            *(spec, facts.processes, facts.restarts),
            now=now.timestamp(),
            step=before.step,
            startup_timeouts=False,
        )
    )
    cluster = facts.cluster.model_copy(
        update={"suspend_requested": None, "config": observed.desired.pinned.name}
    )
    consequences = apply_actions(
        actions, spec, facts.groups, cluster, facts.restarts, now, waited=facts.waited, unmade=facts.unmade
    )
    return _make_plan(observed, before, facts, consequences, now)


def _gather_facts(observed: Observed, before: JobStatus, now: datetime.datetime) -> _Facts:
    spec = observed.desired.spec
    cluster = with_newest_attempt(before.cluster or ClusterStatus(), observed.pods)
    groups = group_pods(spec, cluster, observed.pods)
    cluster = clear_unmade_attempt(spec, cluster, groups)
    # Whatever the status says that it was about to make: pods were refused, an operator died before, or they waited.
    unmade = cluster.unmade == cluster.attempt and not groups.of(Role.TRAINER)
    there_once = cluster.attempt > 0 and (not unmade or cluster.attempt == observed.created_attempt)
    begun = before.phase in ("Provisioning", "Running") and there_once
    restarts = read_windows(before, cluster)
    waited = bool(cluster.counted)
    last = 0.0 if waited else restarts.get(Role.TRAINER, Restarts()).last
    processes = process_states(
        spec, groups, begun=begun, suspending=cluster.suspend_requested is not None, last=last
    )
    first = groups.current.get((Role.TRAINER, 0, 0))
    cluster = deadlines.with_progress(observed, first, cluster, now)
    activity = observed.trainer.activity if observed.trainer else None
    silence = trainer_silence(spec, processes, groups, cluster, activity)
    due_by = now.timestamp() - (KUBELET_SECONDS if spec.placement == "shared" else 0.0)
    processes = mark_hung_trainers(processes, silence.ended(due_by) if silence else None)
    return _Facts(cluster, groups, restarts, processes, silence, waited, unmade)


def _is_to_stop(observed: Observed) -> bool:
    """True if the job is suspended, waits for something, or has no quota; what is unknown stops nothing that runs."""
    waits = observed.desired.waits is not None
    return (
        observed.desired.spec.suspend
        or waits
        or observed.quota not in ("none", "left", "admitted", "unknown")
    )


def _make_plan(
    observed: Observed, before: JobStatus, facts: _Facts, consequences: Consequences, now: datetime.datetime
) -> Plan:
    """The plan that carries the consequences out: pods created and deleted, the new scale, and the status that records
    them."""
    job, spec, groups, finish = observed.job, observed.desired.spec, facts.groups, consequences.finish
    counted = {*facts.cluster.counted, *consequences.counted}
    cluster, generators = _autoscale(observed, facts, _record_attempt(consequences, groups, counted), finish)
    create = consequences.create if finish is None else []
    state = ReconcileState(
        observed=observed,
        before=before,
        processes=facts.processes,
        restarts=totals(consequences.restarts),
        cluster=cluster,
        pods=groups.pods,
        now=now,
        finish=finish,
        creating=create,
        stall=facts.silence.message(now.timestamp(), now) if facts.silence else "",
    )
    status, events = describe(state)
    failures = node_failures(status, now) if create else []
    avoid = tuple(sorted({failure.node for failure in failures}))
    if avoid:
        events = (*events, Event("Warning", "NodeAvoided", describe_avoidance(failures)))
    if generators is not None:
        events = (*events, autoscale.scaled_event(status, spec.generator.replicas, generators))
    return Plan(
        status=status,
        companions=finish is None,
        token=finish is None and is_token_missing(job, groups.pods),
        create=tuple(replace(new, avoid=avoid) for new in create),
        delete=deletions(_choose_deletions(consequences, groups, counted, spec), groups.pods, now),
        members=membership(groups, spec),
        events=events,
        generators=generators,
        queue="leave" if observed.quota == "left" else report_if_admitted(observed),
        again=POLL_SECONDS,
        due=pause_left(spec, facts.processes, facts.restarts, now.timestamp()) if finish is None else None,
    )


def _record_attempt(consequences: Consequences, groups: PodGroups, counted: set[str]) -> ClusterStatus:
    """The operator's state, with the pods that are counted and still there, and the restarts."""
    changes = {
        "counted": still_there(counted, groups.pods),
        "restarts": write_windows(consequences.restarts),
    }
    return consequences.cluster.model_copy(update=changes)


def _choose_deletions(
    consequences: Consequences, groups: PodGroups, counted: set[str], spec: Spec
) -> list[Deletion]:
    """Pods to delete: all that run, if the job ends, but those that stay; else those evicted, replaced or surplus."""
    delete = consequences.delete
    if consequences.finish is not None:
        delete = [
            last_deletion(pod)
            for pod in groups.pods
            if pod.ended is None and not is_retained(spec, consequences.finish.phase, pod)
        ]
    replaced = [
        pod for pod in groups.pods if (pod.uid in counted or pod.is_spent) and not pod.restarts_in_place
    ]
    leaving = [*replaced, *groups.surplus]
    return [*map(deletion, evicted_pods(groups)), *delete, *map(deletion, leaving)]


def _autoscale(
    observed: Observed, facts: _Facts, cluster: ClusterStatus, finish: Finish | None
) -> tuple[ClusterStatus, int | None]:
    """The operator's state with the newest measured step, and the number of generators to scale to, if any."""
    if finish is not None or observed.trainer is None:
        return cluster, None
    spec = observed.desired.spec
    scaling = autoscale.record_step(spec, observed.trainer, cluster.scaling, facts.processes)
    generators = autoscale.choose_replicas(spec, scaling) if scaling else None
    return cluster.model_copy(update={"scaling": scaling}), generators
