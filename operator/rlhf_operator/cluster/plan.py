"""Next step of a job, a pure function of one observation. This page and `reconcile.py` tell the whole story."""

import datetime

from rlhf_api.roles import Role
from rlhf_api.status import ENDED, ClusterStatus

from ..budget import Restarts, totals
from ..job_status import first_status
from ..restart_policy import decide, pause_left
from . import autoscale, deadlines, windows
from .conditions import Look
from .consequences import carried_out, deletion, once_made
from .describe import describe
from .names import token_name
from .next_step import POLL_SECONDS, Plan, deletions
from .observed import Observed
from .pod_groups import adopted, evicted, hung, lack, membership, seen, silent, sort
from .stopping import after_the_end, report_if_admitted, suspend


def plan(observed: Observed, now: datetime.datetime) -> Plan:
    """The next step of a job whose spec is valid."""
    job, spec = observed.job, observed.wanted.spec
    before = job.status or first_status(spec, None)
    if before.phase in ENDED:
        return after_the_end(observed, before, now)
    cluster = adopted(before.cluster or ClusterStatus(), observed.pods)
    sight = sort(spec, cluster, observed.pods)
    waits = observed.wanted.waits is not None
    stop = spec.suspend or waits or observed.quota not in ("none", "left", "admitted")
    cluster = once_made(spec, cluster, sight)
    # Whatever the status says that it was about to make: pods were refused, an operator died before, or they waited.
    unmade = cluster.unmade == cluster.attempt and not sight.of(Role.TRAINER)
    there_once = cluster.attempt > 0 and (not unmade or cluster.attempt == observed.made)
    begun = before.phase in ("Provisioning", "Running") and there_once
    restarts = windows.read(before, cluster)
    waited = bool(cluster.counted)  # what was to go before a start has been seen and counted
    last = 0.0 if waited else restarts.get(Role.TRAINER, Restarts()).last
    processes = seen(spec, sight, begun=begun, suspending=cluster.suspend_requested is not None, last=last)

    first = sight.current.get((Role.TRAINER, 0, 0))
    cluster = deadlines.with_progress(observed, first, cluster, now)
    activity = observed.trainer.activity if observed.trainer else None
    quiet = silent(spec, processes, sight, cluster, activity)
    processes = hung(processes, quiet.ended(now.timestamp()) if quiet else None)
    finish = deadlines.ended(observed, before, cluster, now)
    if finish is None and stop:
        return suspend(observed, before, cluster, sight, processes, now)
    # Who starts too slowly is ended by the kubelet's startup probe.
    actions = (
        (finish,)
        if finish
        else decide(spec, processes, restarts, now=now.timestamp(), startup_timeouts=False)
    )
    cluster = cluster.model_copy(update={"suspend_requested": None, "config": observed.wanted.pinned.name})

    made = carried_out(actions, spec, sight, cluster, restarts, now, waited=waited, unmade=unmade)
    finish = made.finish
    there = {pod.uid for pod in sight.pods}
    counted = {*cluster.counted, *made.counted}
    cluster = made.cluster.model_copy(
        update={"counted": tuple(sorted(counted & there)), "restarts": windows.written(made.restarts)}
    )
    create, delete = made.create, made.delete
    if finish is not None:
        create, delete = [], [deletion(pod) for pod in sight.pods if pod.ended is None]
    leaving = [pod for pod in sight.pods if pod.uid in counted or pod in sight.surplus]
    delete = [*map(deletion, evicted(sight)), *delete, *map(deletion, leaving)]
    generators = None
    if finish is None and observed.trainer is not None:
        scaling = autoscale.looked(spec, observed.trainer, cluster.scaling, processes)
        cluster = cluster.model_copy(update={"scaling": scaling})
        generators = autoscale.decided(spec, scaling) if scaling else None
    found = Look(
        observed=observed,
        before=before,
        processes=processes,
        restarts=totals(made.restarts),
        cluster=cluster,
        pods=sight.pods,
        now=now,
        finish=finish,
        creating=create,
        stall=quiet.told(now.timestamp(), now) if quiet else "",
    )
    status, events = describe(found)
    if generators is not None:
        events = (*events, autoscale.told(status, spec.generator.replicas, generators))
    return Plan(
        status=status,
        companions=finish is None,
        token=finish is None and lack(sight.pods, token_name(job.name, job.uid)),
        create=tuple(create),
        delete=deletions(delete, sight, now),
        members=membership(sight),
        events=events,
        generators=generators,
        queue="leave" if observed.quota == "left" else report_if_admitted(observed),
        again=POLL_SECONDS,
        due=pause_left(spec, processes, restarts, now.timestamp()) if finish is None else None,
    )
