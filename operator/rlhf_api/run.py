"""Contract of a host (the operator, the local launcher) with a job's processes: configuration, environment, commands.

One contract, two hosts: both start `command(...)` with `environment(...)`, push the membership to the
trainer's control API, read its status there, and judge an ended process by its exit code and termination
message.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from .algorithms import graph_of
from .base import DType, Positive, Report
from .roles import HEALTH as HEALTH
from .roles import Role, RoleSpec
from .spec import Spec

EXIT_INVALID = 78
"""Exit code of a role that cannot run this job as it stands (EX_CONFIG); starting it again would not help."""
EXIT_SUSPENDED = 79
"""Exit code of a trainer that stopped on request, after a checkpoint."""
EXIT_ROLLED_BACK = 80
"""Exit code of a trainer that a rule of `spec.health` sent back to its last good snapshot, to be started from there."""
EXIT_UNHEALTHY = 81
"""Exit code of a trainer whose job a rule of `spec.health` ends; starting it again would end the same."""

CONTROL_STATUS = "/v1/status"
"""GET: TrainerStatus."""
CONTROL_MEMBERS = "/v1/members"
"""PUT: Membership."""
CONTROL_STOP = "/v1/stop"
"""POST: checkpoint at the next safe point, then exit with EXIT_SUSPENDED."""
CONTROL_CHECKPOINT = "/v1/checkpoint"
"""POST: checkpoint at the next safe point and go on."""


class RunConfig(Report):
    """The configuration file of a job's processes: a ConfigMap on a cluster, `run.json` on one machine."""

    job: str
    spec: Spec
    workdir: str
    """Absolute path of the work directory, as the roles see it."""
    resume: bool = False
    """Go on from the newest checkpoint; without one, or with false, start anew."""

    @property
    def store(self) -> str:
        """The checkpoint store, as a URL."""
        return self.spec.checkpoint.store or Path(self.workdir, "checkpoints").as_uri()

    def role(self, role: Role) -> RoleSpec:
        section: RoleSpec = getattr(self.spec, role.value)
        return section

    def dtype(self, role: Role) -> DType:
        """The compute dtype of a role."""
        return self.role(role).dtype or self.spec.model.dtype


class Member(Report):
    """A process that serves the trainer. A restart keeps `name` and changes `uid`."""

    role: Role
    name: str
    uid: str
    address: str
    """`http://host:port`."""
    draining: bool = False
    """It will end soon: no new work, no new weights."""


class Membership(Report):
    """Everyone who serves the trainer, as the host sees it now."""

    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Process:
    """Address of one process of a job, and of the rendezvous of the trainer's ranks, or of those of one generator."""

    role: Role
    index: int
    port: int
    """Of its HTTP; where rank 0 of its generator alone has one, of that."""
    host: str
    """The address under which others reach it."""
    master: str
    """`host:port` of the rendezvous."""
    rank: int = 0
    """Of a generator that spans several pods."""

    @property
    def name(self) -> str:
        return process_name(self.role, self.index, self.rank)


def listens(process: Process) -> bool:
    """It answers on its port: of the trainer's processes, and of one generator's, the first does."""
    return process.rank == 0 and (process.role is not Role.TRAINER or process.index == 0)


def process_name(role: Role, index: int, rank: int) -> str:
    """`generator-2`, and its further pods `generator-2-1` and so on."""
    return f"{role.value}-{index}" + (f"-{rank}" if rank else "")


def roles_of(spec: Spec) -> tuple[Role, ...]:
    """Roles that a job has processes for: those of its graph, without generators where the trainer generates."""
    shared = spec.generator.shared_with_trainer
    return tuple(role for role in graph_of(spec).roles if role is not Role.GENERATOR or not shared)


def replicas(spec: Spec, role: Role) -> Positive:
    section: RoleSpec = getattr(spec, role.value)
    return section.replicas


def pods_each(spec: Spec, role: Role) -> Positive:
    """Pods, or processes of one machine, of one replica of a role."""
    return spec.generator.pods_per_replica if role.row.work == "generate" else 1


def places(spec: Spec, role: Role) -> list[tuple[int, int]]:
    """The index of its replica, and the rank in it, of each process of a role."""
    return list(product(range(replicas(spec, role)), range(pods_each(spec, role))))


TORCHRUN = "rlhf_trainer.torchrun"
"""The module that starts a trainer's ranks."""


def command(
    config: RunConfig, process: Process, python: str = "python3", *, torchrun: str = TORCHRUN
) -> list[str]:
    """The command line of a process; `torchrun` is the module of that name in the image that it runs."""
    module = f"rlhf_trainer.roles.{process.role.value}"
    if process.role is not Role.TRAINER:
        return [python, "-m", module]
    trainer = config.spec.trainer
    host, port = process.master.rsplit(":", 1)
    return [
        *(python, "-m", torchrun),
        *("--nnodes", str(trainer.replicas), "--nproc-per-node", str(trainer.processes_per_replica)),
        *("--node-rank", str(process.index), "--master-addr", host, "--master-port", port),
        *("--max-restarts", "0", "-m", module),
    ]


OUTLIVE_PEERS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""Environment of a process that outlives its peers. If NCCL loses one over TCP, torch's watchdog asks for a dump, and
after a dump its monitor ends the process: by default eight minutes after another one died, and with it the trainer and
every other generator."""

SHARE_CORES = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Compute threads that wait for each other sleep. Where they spin, as torch's do by default, they use up their share of
a core that somebody else uses too, and are off it when their work comes: a step takes many times as long."""


def environment(
    config: RunConfig, process: Process, *, config_file: str, termination_log: str
) -> dict[str, str]:
    """The environment variables of a process, but for RLHF_TOKEN, which each host keeps as a secret."""
    return {
        **OUTLIVE_PEERS,
        **SHARE_CORES,
        **config.spec.environment,
        "RLHF_RUN_CONFIG": config_file,
        "RLHF_NAME": process.name,
        "RLHF_INDEX": str(process.index),
        "RLHF_HOST": process.host,
        "RLHF_PORT": str(process.port),
        "RLHF_TERMINATION_LOG": termination_log,
        **_group(config, process),
    }


def _group(config: RunConfig, process: Process) -> dict[str, str]:
    if pods_each(config.spec, process.role) == 1:
        return {}
    return {"RLHF_RANK": str(process.rank), "RLHF_MASTER": process.master}


@dataclass(frozen=True)
class ProcessEnv:
    """The environment of a process, parsed: the other end of `environment`."""

    config: RunConfig
    index: int
    host: str
    port: int
    token: str
    termination_log: str
    rank: int = 0
    master: str = ""
    """Of the rendezvous of a generator's pods, where it has several."""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "ProcessEnv":
        """Raises KeyError where a variable is missing: the process was not started by a host."""
        config = RunConfig.model_validate_json(Path(environ["RLHF_RUN_CONFIG"]).read_bytes())
        return cls(
            config=config,
            index=int(environ["RLHF_INDEX"]),
            host=environ["RLHF_HOST"],
            port=int(environ["RLHF_PORT"]),
            token=environ["RLHF_TOKEN"],
            termination_log=environ["RLHF_TERMINATION_LOG"],
            rank=int(environ.get("RLHF_RANK", "0")),
            master=environ.get("RLHF_MASTER", ""),
        )
