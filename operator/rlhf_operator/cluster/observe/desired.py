"""Desired configuration: the job's spec, or the pinned one while its pods run that; pure."""

from dataclasses import dataclass
from typing import Any

from rlhf_api.contract.run import shares_pod, with_digests
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import runnable
from rlhf_api.manifest.runtime import NamedRuntime, merged, with_runtime
from rlhf_api.rules.check import CHANGEABLE
from rlhf_api.rules.engines.generator import pods_per_replica
from rlhf_api.rules.pods.placement import cluster_problems
from rlhf_api.spec import Spec

from ...job.snapshot import Job
from ..config.limits import Limits
from ..config.settings import Defaults
from ..objects.limit_checks import check, lacks_queue, wrong_priority
from ..objects.pinned import Pinned, with_generators
from ..objects.pod_sets import too_many_sets


@dataclass(frozen=True)
class Wait:
    """Reason and message of a job that cannot start yet, because of its runtime or its queue."""

    reason: str
    message: str


@dataclass(frozen=True)
class Desired:
    """A validated configuration, and the changes of the job's spec that it ignores."""

    pinned: Pinned
    spec: Spec
    """Spec with the fields that may change while the pods run: suspend, generator.replicas, deadlines."""
    ignored: str | None = None
    """Reason why the present spec is not what runs."""
    waits: Wait | None = None
    """The job waits for its runtime, to exist or to be compatible, or for its queue; until then it has no pods."""


def active_config(job: Job) -> str | None:
    """Name of the ConfigMap that the job's pods run, if any."""
    status = job.status
    if status is None or status.cluster is None or status.phase not in ("Provisioning", "Running"):
        return None
    return status.cluster.config


def asks_to_suspend(job: Job) -> bool:
    """The spec's `suspend`, also of a spec that is invalid elsewhere."""
    spec = job.body.get("spec")
    return isinstance(spec, dict) and spec.get("suspend") is True


def desired_state(
    job: Job,
    running: Pinned | None,
    defaults: Defaults,
    limits: Limits | None = None,
    runtime: NamedRuntime | Wait | None = None,
) -> Desired:
    """Desired configuration. `running`: the content of `active_config`, if any; `defaults` and `limits`: the operator's
    present ones; `runtime`: the referenced one. Running pods keep those they started with until the job is suspended.

    Raises:
        InvalidJob: the spec is invalid, and nothing runs yet.
    """
    try:
        spec = runnable(job.body).spec
    except InvalidJob as error:
        if running is None:
            raise
        spec = running.config.spec.model_copy(update={"suspend": asks_to_suspend(job)})
        return Desired(
            running, spec, f"the changed spec is not valid, so the job runs on with the one before: {error}"
        )
    if running is None:
        if job.queue is not None:  # a queue without quota for memory would never admit pods that ask for some
            defaults = defaults.model_copy(update={"requests": False})
        own = Pinned.make(job.name, spec, defaults, job.uid)
        check(limits, own, whole=spec.runtime is None)
        if problem := lacks_queue(limits, job.queue):
            return Desired(own, spec, waits=Wait("QueueRequired", str(problem)))
        if problem := too_many_sets(spec, job.queue):
            return Desired(own, spec, waits=Wait("TooManyPodSets", str(problem)))
        if problem := wrong_priority(limits, job.priority):
            return Desired(own, spec, waits=Wait("PriorityRefused", str(problem)))
        if isinstance(runtime, NamedRuntime):
            return _join_runtime(job, spec, runtime, own, limits)
        return Desired(own, spec, waits=runtime)
    if running.defaults.runtime is not None and spec.runtime is not None:
        spec = merged(spec, running.defaults.runtime.spec)
    running = running.scaled(_generators(running, spec.generator.replicas))
    applied = running.config.spec.model_copy(update={name: getattr(spec, name) for name in CHANGEABLE})
    changed = ", ".join(
        _changed_fields(
            applied, with_digests(spec), same_release=running.defaults.release == defaults.release
        )
    )
    reason = f"{changed} changed while the job runs; suspend and resume the job to apply that"
    return Desired(running, applied, reason if changed else None)


def _generators(running: Pinned, requested: int) -> int:
    """The number asked for, unless as many of the running configuration's generators would have too many pods, or they
    share the trainer's pod, to which none can be added."""
    there = running.config.spec
    fits = not shares_pod(there) and not any(pods_per_replica(with_generators(there, requested)))
    return requested if fits else there.generator.replicas


def _join_runtime(job: Job, spec: Spec, runtime: NamedRuntime, own: Pinned, limits: Limits | None) -> Desired:
    """The spec merged with the runtime and checked against the limits, which a runtime cannot widen. If the result is
    refused although the job itself was not, the job waits for a change of either."""
    try:
        outcome = with_runtime(spec, runtime)
        if refused := [*cluster_problems(outcome)]:
            raise InvalidJob(refused)
        joint = own.defaults.model_copy(update={"runtime": runtime})
        pinned = Pinned.make(job.name, outcome, joint, job.uid)
        check(limits, pinned)
    except InvalidJob as error:
        reasons = "; ".join(map(str, error.problems))
        message = f"{runtime.kind} {runtime.name} and this job's spec are not valid together: {reasons}"
        return Desired(own, spec, waits=Wait("RuntimeRefused", message))
    return Desired(pinned, outcome)


def _changed_fields(running: Spec, spec: Spec, *, same_release: bool) -> list[str]:
    """Fields that differ between the job's spec and what runs. Defaults, as of what was taken out of the spec, are
    compared within one release: those of another may differ."""
    before = running.model_dump(mode="json", by_alias=True)
    if same_release:
        now = spec.model_dump(mode="json", by_alias=True)
        return [f"spec.{key}" for key, value in now.items() if value != before[key]]
    explicit = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return [f"spec.{key}" for key, value in explicit.items() if not _is_subset(value, before.get(key))]


def _is_subset(explicit: Any, before: Any) -> bool:
    if isinstance(explicit, dict) and isinstance(before, dict):
        return all(key in before and _is_subset(value, before[key]) for key, value in explicit.items())
    if isinstance(explicit, list) and isinstance(before, list):
        return len(explicit) == len(before) and all(map(_is_subset, explicit, before))
    return bool(explicit == before)
