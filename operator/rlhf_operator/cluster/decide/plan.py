"""Next step of a job, a pure function of one observation. This page and `reconcile.py` tell the whole story."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_api.contract.status import ENDED, ClusterStatus, JobStatus
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...job.names import token_name
from ...status.job_status import first_status
from ...supervision.budget import Restarts, totals
from ...supervision.process_state import Finish, ProcessState
from ...supervision.progress_deadline import Silence
from ...supervision.restart_policy import decide, pause_left
from ..objects.node_avoidance import describe_avoidance, node_failures
from ..observe.observed import Observed
from . import autoscale, deadlines, windows
from .conditions import Look
from .consequences import Consequences, Deletion, carried_out, deletion, once_made
from .describe import Event, describe
from .next_step import POLL_SECONDS, Plan, deletions
from .pod_groups import PodGroups, adopted, evicted, hung, lack, membership, seen, silent, sort
from .stopping import after_the_end, report_if_admitted, stays, suspend


@dataclass(frozen=True)
class _Known:
    """Facts that follow from an observation and the status before it."""

    cluster: ClusterStatus
    sight: PodGroups
    restarts: Mapping[Role, Restarts]
    processes: Sequence[ProcessState]
    quiet: Silence | None
    """The trainer's silence, which ends it once it is too long."""
    waited: bool
    """True if the pods that had to end before a start were seen to, and counted."""
    unmade: bool
    """The present attempt's trainer pods were not all seen on their nodes, and none is left."""


def plan(observed: Observed, now: datetime.datetime) -> Plan:
    """The next step of a job whose spec is valid."""
    spec = observed.wanted.spec
    before = observed.job.status or first_status(spec, None)
    if before.phase in ENDED:
        return after_the_end(observed, before, now)
    known = _known(observed, before, now)
    finish = deadlines.ended(observed, before, known.cluster, now)
    if finish is None and _is_to_stop(observed):
        return suspend(observed, before, known.cluster, known.sight, known.processes, now)
    # Who starts too slowly is ended by the kubelet's startup probe.
    actions = (
        (finish,)
        if finish
        else decide(
            *(spec, known.processes, known.restarts),
            now=now.timestamp(),
            step=before.step,
            startup_timeouts=False,
        )
    )
    cluster = known.cluster.model_copy(
        update={"suspend_requested": None, "config": observed.wanted.pinned.name}
    )
    made = carried_out(
        actions, spec, known.sight, cluster, known.restarts, now, waited=known.waited, unmade=known.unmade
    )
    return _planned(observed, before, known, made, now)


def _known(observed: Observed, before: JobStatus, now: datetime.datetime) -> _Known:
    spec = observed.wanted.spec
    cluster = adopted(before.cluster or ClusterStatus(), observed.pods)
    sight = sort(spec, cluster, observed.pods)
    cluster = once_made(spec, cluster, sight)
    # Whatever the status says that it was about to make: pods were refused, an operator died before, or they waited.
    unmade = cluster.unmade == cluster.attempt and not sight.of(Role.TRAINER)
    there_once = cluster.attempt > 0 and (not unmade or cluster.attempt == observed.made)
    begun = before.phase in ("Provisioning", "Running") and there_once
    restarts = windows.read(before, cluster)
    waited = bool(cluster.counted)
    last = 0.0 if waited else restarts.get(Role.TRAINER, Restarts()).last
    processes = seen(spec, sight, begun=begun, suspending=cluster.suspend_requested is not None, last=last)
    first = sight.current.get((Role.TRAINER, 0, 0))
    cluster = deadlines.with_progress(observed, first, cluster, now)
    activity = observed.trainer.activity if observed.trainer else None
    quiet = silent(spec, processes, sight, cluster, activity)
    processes = hung(processes, quiet.ended(now.timestamp()) if quiet else None)
    return _Known(cluster, sight, restarts, processes, quiet, waited, unmade)


def _is_to_stop(observed: Observed) -> bool:
    """True if the job is suspended, waits for something, or has no quota; what is unknown stops nothing that runs."""
    waits = observed.wanted.waits is not None
    return (
        observed.wanted.spec.suspend or waits or observed.quota not in ("none", "left", "admitted", "unknown")
    )


def _planned(
    observed: Observed, before: JobStatus, known: _Known, made: Consequences, now: datetime.datetime
) -> Plan:
    """The plan that carries the consequences out: pods created and deleted, the new scale, and the status that records
    them."""
    job, spec, sight, finish = observed.job, observed.wanted.spec, known.sight, made.finish
    counted = {*known.cluster.counted, *made.counted}
    cluster, generators = _scaled(observed, known, _recorded(made, sight, counted), finish)
    create = made.create if finish is None else []
    found = Look(
        observed=observed,
        before=before,
        processes=known.processes,
        restarts=totals(made.restarts),
        cluster=cluster,
        pods=sight.pods,
        now=now,
        finish=finish,
        creating=create,
        stall=known.quiet.told(now.timestamp(), now) if known.quiet else "",
    )
    status, events = describe(found)
    failures = node_failures(status, now) if create else []
    avoid = tuple(sorted({failure.node for failure in failures}))
    if avoid:
        events = (*events, Event("Warning", "NodeAvoided", describe_avoidance(failures)))
    if generators is not None:
        events = (*events, autoscale.told(status, spec.generator.replicas, generators))
    return Plan(
        status=status,
        companions=finish is None,
        token=finish is None and lack(sight.pods, token_name(job.name, job.uid)),
        create=tuple(replace(new, avoid=avoid) for new in create),
        delete=deletions(_leaving(made, sight, counted, spec), sight.pods, now),
        members=membership(sight, spec),
        events=events,
        generators=generators,
        queue="leave" if observed.quota == "left" else report_if_admitted(observed),
        again=POLL_SECONDS,
        due=pause_left(spec, known.processes, known.restarts, now.timestamp()) if finish is None else None,
    )


def _recorded(made: Consequences, sight: PodGroups, counted: set[str]) -> ClusterStatus:
    """The operator's state, with the pods that are counted and still there, and the restarts."""
    there = {pod.uid for pod in sight.pods}
    changes = {"counted": tuple(sorted(counted & there)), "restarts": windows.written(made.restarts)}
    return made.cluster.model_copy(update=changes)


def _leaving(made: Consequences, sight: PodGroups, counted: set[str], spec: Spec) -> list[Deletion]:
    """Pods to delete: all that run, if the job ends, but those that stay; else those evicted, replaced or surplus."""
    delete = made.delete
    if made.finish is not None:
        delete = [
            deletion(pod)
            for pod in sight.pods
            if pod.ended is None and not stays(spec, made.finish.phase, pod)
        ]
    leaving = [pod for pod in sight.pods if pod.uid in counted or pod in sight.surplus]
    return [*map(deletion, evicted(sight)), *delete, *map(deletion, leaving)]


def _scaled(
    observed: Observed, known: _Known, cluster: ClusterStatus, finish: Finish | None
) -> tuple[ClusterStatus, int | None]:
    """The operator's state with the newest measured step, and the number of generators to scale to, if any."""
    if finish is not None or observed.trainer is None:
        return cluster, None
    spec = observed.wanted.spec
    scaling = autoscale.looked(spec, observed.trainer, cluster.scaling, known.processes)
    generators = autoscale.decided(spec, scaling) if scaling else None
    return cluster.model_copy(update={"scaling": scaling}), generators
