"""Contract between a host (the operator, the local launcher) and a job's processes: configuration, environment,
commands.

One contract, two hosts: both start `command(...)` with `environment(...)`, push the membership to the trainer's control
API, read its status there, and judge an ended process by its exit code and termination message.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from ..field_types import DType, ModelField, Report
from ..roles import Role
from ..sections.roles import ComputingRole
from ..spec import Spec
from .proof import Prover, lesser_token
from .teachers import view_of, views_of

EXIT_INVALID = 78
"""Exit code of a role that cannot run this job (EX_CONFIG); a restart would not help."""
EXIT_SUSPENDED = 79
"""Exit code of a trainer that stopped on request, after a checkpoint."""
EXIT_ROLLED_BACK = 80
"""Exit code of a trainer after a rollback by `spec.health`: restart it from its last good snapshot."""
EXIT_UNHEALTHY = 81
"""Exit code of a trainer whose job a rule of `spec.health` fails; a restart would end the same."""

CONTROL_STATUS = "/v1/status"
"""GET: TrainerStatus."""
CONTROL_MEMBERS = "/v1/members"
"""PUT: Membership."""
CONTROL_STOP = "/v1/stop"
"""POST: checkpoint at the next safe point, then exit with EXIT_SUSPENDED."""
CONTROL_CHECKPOINT = "/v1/checkpoint"
"""POST: checkpoint at the next safe point and continue."""


_FILE = "configuration"


def of_file(name: str) -> dict[str, str]:
    """The reference to the configuration in another file of the same directory."""
    return {_FILE: name}


def with_digests(spec: Spec) -> Spec:
    """The spec with a digest in place of each file that the job carries: the text is nothing that processes read in
    their configuration, or others in a card or a list of changes."""
    files = spec.workspace.files
    if not files:
        return spec
    digests = {name: f"sha256 {_digest(text)}" for name, text in files.items()}
    return spec.model_copy(update={"workspace": spec.workspace.model_copy(update={"files": digests})})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


RUN_FILE = "run.json"
"""Its name in a run's work directory."""


class RunConfig(Report):
    """The configuration file of a job's processes: a ConfigMap on a cluster, `run.json` on one machine."""

    job: str
    spec: Spec
    workdir: str
    """Absolute path of the work directory, in the roles' file system."""
    resume: bool = False
    """Resume from the newest checkpoint, if there is one; false: start anew."""
    shared_gpus: bool = False
    """Trainer ranks, generators and frozen models are on the same GPUs of one machine, or of one pod."""
    shared_gpu_count: int = 0
    """Number of these GPUs; 0: they share none, or CPUs."""

    @classmethod
    def read(cls, file: Path) -> "RunConfig":
        """Reads a configuration, or a file that names one beside it (`of_file`) and says whether to resume: a spec is
        stored once, though a start and a resume have a file each."""
        text = file.read_bytes()
        document = json.loads(text)
        if not isinstance(document, dict) or _FILE not in document:
            return cls.model_validate_json(text)
        config = cls.model_validate_json((file.parent / document[_FILE]).read_bytes())
        return config.model_copy(update={"resume": document["resume"]})

    @property
    def store(self) -> str:
        """The checkpoint store, as a URL."""
        return self.spec.checkpoint.store or Path(self.workdir, "checkpoints").as_uri()

    @property
    def takes_turns(self) -> bool:
        """True if generators sleep while the trainer computes, and the trainer waits while they generate: they share
        GPUs, and no step's responses overlap with training."""
        return self.shared_gpus and generates_in_turns(self.spec)

    def view_of(self, role: Role, index: int) -> "RunConfig":
        """The configuration as one process of a role sees it."""
        return self.model_copy(update={"spec": view_of(self.spec, role, index)})

    def dtype(self, role: Role) -> DType:
        """The compute dtype of a role."""
        return dtype_of(self.spec, role)


class ExportRequest(Report):
    """A model of a checkpoint that the trainer's packages are to write as a Hugging Face folder, as JSON on their
    standard input."""

    store: str
    step: int
    out: str
    """Absolute path of the folder to write."""
    field: ModelField = "policy"
    adapter: Literal["merged", "alone"] | None = None
    """The form in which an adapter is written; None: merged, or the model has none."""
    model: str | None = None
    """Folder or hub name of the model that the job started from, in place of the one that the checkpoint names."""


class PictureRequest(Report):
    """Runs of this machine that the trainer's packages are to draw in one picture, as JSON on their standard input."""

    runs: dict[str, str]
    """Work directories by the name in the picture."""
    out: str


class Member(Report):
    """A process that serves the trainer. A restart keeps `name` and changes `uid`."""

    role: Role
    name: str
    uid: str
    address: str
    """`http://host:port`."""
    draining: bool = False
    """The process will end soon: no new work, no new weights."""


class Membership(Report):
    """All processes that serve the trainer, as known to the host."""

    members: tuple[Member, ...] = ()
    unplaced: tuple[Role, ...] = ()
    """Roles of processes that are wanted and have no node, which they may never get; one for each process."""
    exhausted: tuple[str, ...] = ()
    """Uids of sandboxes that have just ended, as their commands used up the memory or the disk that they may."""


@dataclass(frozen=True)
class Process:
    """Address of one process of a job, and of the rendezvous of the trainer's ranks or of a generator's pods."""

    role: Role
    index: int
    port: int
    """Port of its HTTP server, or of rank 0's if only rank 0 of its generator has one."""
    host: str
    """Address for other processes."""
    master: str
    """`host:port` of the rendezvous."""
    rank: int = 0
    """Rank of the pod in a multi-pod generator."""

    @property
    def name(self) -> str:
        return process_name(self.role, self.index, self.rank)


def listens(process: Process) -> bool:
    """True if the process listens on its port: only the first process of the trainer and of each generator does."""
    return process.rank == 0 and (process.role is not Role.TRAINER or process.index == 0)


def process_name(role: Role, index: int, rank: int) -> str:
    """`generator-2`, and its further pods `generator-2-1` and so on."""
    return f"{role.value}-{index}" + (f"-{rank}" if rank else "")


def roles_of(spec: Spec) -> tuple[Role, ...]:
    """Roles with processes: those of the graph, without generators if the trainer generates, environments that are not
    beside it, and their sandboxes."""
    shared, graph, section = spec.generator.shared_with_trainer, spec.graph, spec.environment
    own = list[Role]()
    if graph.generates and section is not None:
        own += [Role.ENVIRONMENT] if section.replicas else []
        own += [Role.SANDBOX] if spec.sandbox is not None else []
    return (*(role for role in graph.roles if role is not Role.GENERATOR or not shared), *own)


def on_one_machine(spec: Spec) -> Spec:
    """The spec of a run of one machine, where no sandbox is a pod: environments make theirs themselves."""
    return spec.model_copy(update={"sandbox": None})


def place_named(name: str) -> tuple[Role, int] | None:
    """Role and index of the process of this name, of rank 0; None for any other name."""
    role, _, index = name.rpartition("-")
    is_name = role in list(Role) and index.isdecimal() and process_name(Role(role), int(index), 0) == name
    return (Role(role), int(index)) if is_name else None


def pod_roles(spec: Spec) -> tuple[Role, ...]:
    """Roles with pods of their own on a cluster: processes that share GPUs are all in the trainer's one pod."""
    return (Role.TRAINER,) if shares_pod(spec) else roles_of(spec)


def shares_pod(spec: Spec) -> bool:
    """True if all processes are in one pod on a cluster; there `auto` is apart."""
    return spec.placement == "shared"


def role_views(spec: Spec) -> list[tuple[Role, Spec]]:
    """Each role with processes, and the job as those of each of its models see it."""
    return [(role, view) for role in roles_of(spec) for view in views_of(spec, role)]


def dtype_of(spec: Spec, role: Role) -> DType:
    """The compute dtype of a role."""
    section = spec.section(role)
    own = section.dtype if isinstance(section, ComputingRole) else None
    return own or spec.model.dtype


def generates_in_turns(spec: Spec) -> bool:
    """True if generators never answer while the trainer computes, and get new weights before each step: no staleness,
    no minibatches as they arrive, a broadcast after every step."""
    ahead = spec.rollout.max_staleness > 0 or spec.replay.dynamic
    return Role.GENERATOR in roles_of(spec) and not ahead and spec.weights.every_steps == 1


def replicas(spec: Spec, role: Role) -> int:
    """Processes of a role, or of a generator's first ones; those of all teachers."""
    return sum(view.section(role).replicas for view in views_of(spec, role))


def pods_each(spec: Spec, role: Role) -> int:
    """Pods, or processes on one machine, per replica of a role."""
    return spec.generator.pods_per_replica if role.row.work == "generate" else 1


def places(spec: Spec, role: Role) -> list[tuple[int, int]]:
    """(replica, rank within it) of each process of a role."""
    return list(product(range(replicas(spec, role)), range(pods_each(spec, role))))


TORCHRUN = "rlhf_trainer.torchrun"
"""The module that starts a trainer's ranks."""


def command(
    config: RunConfig, process: Process, python: str = "python3", *, torchrun: str = TORCHRUN
) -> list[str]:
    """The command line of a process; `torchrun`: the module of that name in the image. Without `-P` Python imports what
    has a library's name from the directory it runs in, which may be one of somebody's data."""
    module = f"rlhf_trainer.roles.{process.role.value}"
    if process.role is not Role.TRAINER:
        return [python, "-P", "-m", module]
    trainer = config.spec.trainer
    host, port = process.master.rsplit(":", 1)
    return [
        *(python, "-P", "-m", torchrun),
        *("--nnodes", str(trainer.replicas), "--nproc-per-node", str(trainer.processes_per_replica)),
        *("--node-rank", str(process.index), "--master-addr", host, "--master-port", port),
        *("--max-restarts", "0", "-m", module),
    ]


OUTLIVE_PEERS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""Environment of a process that survives its peers. When NCCL loses one over TCP, torch's watchdog requests a dump,
after which its monitor ends the process: by default eight minutes after a peer died, and with it the trainer and all
generators."""

SHARE_CORES = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Waiting compute threads sleep. By default torch's spin: on a shared core they use up their share, and are descheduled
when their work arrives, which slows a step many times."""


def role_token(token: str, role: Role) -> str:
    """The RLHF_TOKEN of a role's processes, of a job with this token. Environments have one that opens none but their
    own servers, and those of sandboxes, which have one that opens no others."""
    if role is Role.SANDBOX:
        return sandbox_token(role_token(token, Role.ENVIRONMENT))
    return lesser_token(token, role.value) if role is Role.ENVIRONMENT else token


def sandbox_token(environment_token: str) -> str:
    """The token of sandboxes, which follows from that of environments."""
    return lesser_token(environment_token, Role.SANDBOX.value)


def environment(
    config: RunConfig, process: Process, *, config_file: str, termination_log: str
) -> dict[str, str]:
    """Environment variables of a process, except RLHF_TOKEN, which each host stores as a secret."""
    return {
        **OUTLIVE_PEERS,
        **SHARE_CORES,
        **config.spec.env,
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
    """The environment of a process, parsed; inverse of `environment`."""

    config: RunConfig
    index: int
    host: str
    port: int
    token: str
    termination_log: str
    rank: int = 0
    master: str = ""
    """Rendezvous of a multi-pod generator."""
    run: str = ""
    """Identity of the run, the same for all of its attempts and for no other: the job's uid on a cluster."""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "ProcessEnv":
        """Raises KeyError if a variable is missing: the process was not started by a host."""
        config = RunConfig.read(Path(environ["RLHF_RUN_CONFIG"]))
        return cls(
            config=config,
            index=int(environ["RLHF_INDEX"]),
            host=environ["RLHF_HOST"],
            port=int(environ["RLHF_PORT"]),
            token=environ["RLHF_TOKEN"],
            termination_log=environ["RLHF_TERMINATION_LOG"],
            rank=int(environ.get("RLHF_RANK", "0")),
            master=environ.get("RLHF_MASTER", ""),
            run=environ.get("RLHF_RUN", ""),
        )

    def prover(self) -> Prover:
        """Of this process's server."""
        return Prover(self.token, self.host, self.port)
