"""A job that runs, and the series that telemetry has."""

from rlhf_api.contract.report import CheckpointStatus
from rlhf_api.contract.status import JobStatus, RoleStatus
from rlhf_api.roles import Role
from rlhf_operator.cluster.telemetry import Telemetry

KEY = ("team", "ppo")
JOB = {"namespace": "team", "rlhfjob": "ppo"}
RUNNING = JobStatus(
    phase="Running",
    step=3,
    total_steps=40,
    reward=0.5,
    kl=0.01,
    loss=1.5,
    tokens_per_second=1200.0,
    weight_version=3,
    staleness=0.25,
    staleness_max=1,
    staleness_bound=2,
    trainer_idle=0.2,
    generator_idle=0.1,
    responses_continued=7,
    importance_effective=0.75,
    restarts=2,
    gpus=12,
    gpu_seconds=361_800,
    cost=251.25,
    last_checkpoint=CheckpointStatus(step=2, time="2026-01-01T00:00:00Z", uri="s3://bucket/ppo/2"),
    roles={Role.GENERATOR: RoleStatus(desired=2, ready=1), Role.REWARD: RoleStatus(desired=1, ready=1)},
).model_dump(by_alias=True, mode="json")


def samples(telemetry: Telemetry, prefix: str = "rlhf_job_") -> dict[tuple[str, ...], float]:
    """Value by name and label values, the job's own left out."""
    return {
        (s.name, *(v for k, v in s.labels.items() if k not in JOB)): s.value
        for family in telemetry.registry.collect()
        for s in family.samples
        if s.name.startswith(prefix) and not s.name.endswith("_created")
    }
