"""What a job is to run: its spec as it stands, or, while its pods run another one, that one; pure."""

from dataclasses import dataclass

from rlhf_api.manifest import from_cluster
from rlhf_api.problems import InvalidJob
from rlhf_api.run import RunConfig
from rlhf_api.spec import Spec

from .objects import config_name, run_config
from .observed import Job


@dataclass(frozen=True)
class Wanted:
    """A checked configuration, and what of the job's spec it leaves out."""

    config: RunConfig
    config_name: str
    spec: Spec
    """With what may change while the pods run: suspend, generator.replicas, deadlines."""
    ignored: str | None = None
    """Why the spec as it stands is not what runs."""


def active_config(job: Job) -> str | None:
    """The ConfigMap that the job's pods run, where they run one."""
    status = job.status
    if status is None or status.cluster is None or status.phase not in ("Provisioning", "Running"):
        return None
    return status.cluster.config


def wanted(job: Job, running: RunConfig | None) -> Wanted:
    """`running`: the content of `active_config`, where the job has one.

    Raises:
        InvalidJob: the spec can't run, and nothing runs yet.
    """
    active = active_config(job)
    try:
        spec = from_cluster(job.body).spec
    except InvalidJob as error:
        if running is None or active is None:
            raise
        suspend = job.body["spec"].get("suspend") is True if isinstance(job.body.get("spec"), dict) else False
        spec = running.spec.model_copy(update={"suspend": suspend})
        return Wanted(running, active, spec, f"the spec is not valid and the job goes on as it was: {error}")
    config = run_config(job.name, spec)
    name = config_name(config)
    if running is None or active is None or active == name:
        return Wanted(config, name, spec)
    changing = {
        "suspend": spec.suspend,
        "active_deadline_seconds": spec.active_deadline_seconds,
        "ttl_seconds_after_finished": spec.ttl_seconds_after_finished,
        "generator": running.spec.generator.model_copy(update={"replicas": spec.generator.replicas}),
    }
    kept = running.spec.model_copy(update=changing)
    changed = ", ".join(_changed(running.spec, config.spec))
    reason = f"{changed} changed while the job runs; suspend and resume it to have that applied"
    return Wanted(run_config(job.name, kept), active, kept, reason)


def _changed(old: Spec, new: Spec) -> list[str]:
    fields = type(old).model_fields.items()
    return [f"spec.{f.alias or name}" for name, f in fields if getattr(old, name) != getattr(new, name)]
