"""The fault matrix as data: what may fail, in which way, at which moment of a step; and in which order cells run."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

Mode = Literal[
    "on-policy",
    "in turns",
    "staleness 2",
    "on a GPU",
    "on pods",
    "episodes",
    "episodes by a role",
    "episodes by a role at staleness 2",
]
STALENESS: dict[Mode, int] = {
    "on-policy": 0,
    "in turns": 0,
    "staleness 2": 2,
    "on a GPU": 2,
    "on pods": 0,
    "episodes": 0,
    "episodes by a role": 0,
    "episodes by a role at staleness 2": 2,
}

MOMENTS = {
    "generating": "generating",
    "scoring": "scoring",
    "training": "update",
    "broadcasting": "bucket",
    "committing": "swap",
    "checkpointing": "segment",
}
"""Moments of a step, with the point of `rlhf_trainer.process.faults` that is reached then: by rank 0, or where a
generator goes over to new weights by its engine."""
MOMENTS_IN_TURNS = {"sleeping": "asleep", "waking": "room", "training": "update", "committing": "swap"}
"""Of trainer and generators that share their processors: these have just gone to sleep, have made room for new weights,
sleep, and go over to the weights."""
MOMENTS_OF_EPISODES = {"replying": "replying"}
"""Of episodes of several turns: an environment has read a turn and has yet to reply."""
PAUSE_SECONDS = 30.0
"""From SIGSTOP to SIGCONT."""
HANG_SECONDS = 90
"""Progress deadline of the trainer: above PAUSE_SECONDS, and below what a cell waits for a step."""
OUTAGE_SECONDS = 10.0
"""Time for which the object store refuses connections, or its disk is full."""


@dataclass(frozen=True)
class Victim:
    """A process of the job: of the role process `name`, the one whose command line or environment has `part`."""

    name: str
    part: str


STORE, SECOND_RANK = "object store", "trainer rank 1"
TRAINER = "rlhf_trainer.roles.trainer"
VICTIMS = {
    "trainer rank 0": Victim("trainer-0", "RANK=0"),
    SECOND_RANK: Victim("trainer-0", "RANK=1"),
    "torchrun": Victim("trainer-0", "rlhf_trainer.torchrun"),
    "generator server": Victim("generator-1", "rlhf_trainer.engines.vllm.serve.server"),
    "generator engine": Victim("generator-1", "EngineCore"),
    "reward": Victim("reward-0", "rlhf_trainer.roles.reward"),
    "reference": Victim("reference-0", "rlhf_trainer.roles.reference"),
    "supervisor of the trainer": Victim("trainer-0", "reaper.py"),
    "supervisor of a generator": Victim("generator-1", "reaper.py"),
    "supervisor of the reward": Victim("reward-0", "reaper.py"),
}
WORKER = "environment's worker"
WORKERS = {WORKER: Victim("trainer-0", "rlhf_trainer.environments.workers.worker")}
"""Processes that a role starts again itself."""
SERVER = "environment"
OF_ROLE = {
    SERVER: Victim("environment-0", "rlhf_trainer.roles.environment"),
    "environment's worker in it": Victim("environment-0", "rlhf_trainer.environments.workers.worker"),
}
"""Where a role of two processes plays the episodes."""
LOCAL = VICTIMS | WORKERS | OF_ROLE
"""All processes of a job on this machine."""
PROCESS_FAULTS = ("SIGKILL", "SIGTERM", "SIGSTOP", "connections cut", "out of memory")
TURNS: Mode = "in turns"
"""On-policy, with `placement: shared`."""
IN_TURNS = [victim for victim in VICTIMS if not victim.startswith(("ref", "rew", "supervisor of the rew"))]
"""Victims in turns: the others take none."""
GPU: Mode = "on a GPU"
"""At staleness 2, models and vLLM's engines on one GPU, with one trainer rank."""
EPISODES: Mode = "episodes"
"""On-policy, with an environment whose episodes have several turns."""
BY_ROLE: tuple[Mode, ...] = ("episodes by a role", "episodes by a role at staleness 2")
"""The same, with a role of environments."""
PODS: Mode = "on pods"
"""On-policy, as pods of a cluster with two nodes."""
API_SERVER, ETCD, OPERATOR = "API server", "etcd", "operator"
POD_VICTIMS = {
    "trainer": "training",
    "generator": "generating",
    "reward": "scoring",
    "reference": "scoring",
    OPERATOR: "generating",
}
"""Of them one pod, at one moment: the second generator, and the operator that leads."""
UNASKED = ("reward", "reference")
"""Victims that have answered a step by the moment of it that they have in POD_VICTIMS; before it, they have not."""
POD_FAULTS = ("SIGKILL", "SIGTERM", "eviction", "node lost")
NODE, EVERY_NODE = "node of a trainer and a generator", "every node"
CONTROL_FAULTS = {
    API_SERVER: ("SIGKILL", "SIGSTOP", "connections cut"),
    ETCD: ("SIGKILL", "SIGSTOP"),
    OPERATOR: ("SIGSTOP", "connections cut"),
}
"""Parts of the control plane, with their faults, injected while generators generate. No process of the job calls
them."""
AT_ONCE = "API server, operator, a generator's node"
"""All three, of which the API server is only stopped."""
STORE_FAULTS = ("connections cut", "SIGKILL", "SIGSTOP", "disk full")


@dataclass(frozen=True)
class Cell:
    """One fault: `victim` is a key of LOCAL, POD_VICTIMS or CONTROL_FAULTS, STORE, or nodes; `moment` one
    of MOMENTS, or of a mode's own."""

    mode: Mode
    victim: str
    fault: str
    moment: str

    @property
    def ends(self) -> bool:
        """The fault ends the victim in any case."""
        return self.victim in (*VICTIMS, SERVER) and self.fault in ("SIGKILL", "SIGTERM")

    @property
    def point(self) -> str:
        """The process and its point, as `hook` takes them."""
        process = "generator-1" if self.moment == "committing" else "trainer-0"
        process = OF_ROLE[self.victim].name if self.mode in BY_ROLE else process
        return f"{process} {(MOMENTS | MOMENTS_IN_TURNS | MOMENTS_OF_EPISODES)[self.moment]}"


def cells(mode: Mode) -> Iterator[Cell]:
    """All cells of one mode, those first that happen most in practice."""
    if mode == PODS:
        for fault in POD_FAULTS:
            for victim, moment in POD_VICTIMS.items():
                yield Cell(mode, victim, fault, moment)
        for victim in UNASKED:
            yield Cell(mode, victim, "node lost", "generating")
        for victim in (NODE, EVERY_NODE):
            yield Cell(mode, victim, "drain", "generating")
        for victim, faults in CONTROL_FAULTS.items():
            for fault in faults:
                yield Cell(mode, victim, fault, "generating")
        yield Cell(mode, AT_ONCE, "all at once", "generating")
        return
    if mode == EPISODES or mode in BY_ROLE:
        victims = WORKERS if mode == EPISODES else OF_ROLE
        for fault, victim, moment in product(("SIGKILL", "SIGSTOP"), victims, MOMENTS_OF_EPISODES):
            yield Cell(mode, victim, fault, moment)
        return
    if mode == TURNS:
        for fault in PROCESS_FAULTS[:3]:
            for moment, victim in product(MOMENTS_IN_TURNS, IN_TURNS):
                yield Cell(mode, victim, fault, moment)
        return
    chosen = [victim for victim in VICTIMS if mode != GPU or victim != SECOND_RANK]
    for fault in PROCESS_FAULTS:
        for moment, victim in product(MOMENTS, chosen):
            yield Cell(mode, victim, fault, moment)
        if fault == PROCESS_FAULTS[0]:
            for store_fault, moment in product(STORE_FAULTS, MOMENTS):
                yield Cell(mode, STORE, store_fault, moment)
