"""Assigns this machine's GPUs to a job's processes: NCCL refuses two members of a group on one."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.resources import gpus_each
from rlhf_api.roles import Role
from rlhf_api.run import Process, replicas, roles_of
from rlhf_api.serving import on_vllm
from rlhf_api.spec import Spec

VISIBLE = "CUDA_VISIBLE_DEVICES"


def present(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """This machine's GPUs, or those of them that the user left visible."""
    if VISIBLE in environ:
        return [name for name in environ[VISIBLE].split(",") if name]
    return sorted(
        (m[1] for p in devices.glob("nvidia*") if (m := re.fullmatch(r"nvidia(\d+)", p.name))), key=int
    )


def check(spec: Spec, gpus: Sequence[str]) -> None:
    """Raises InvalidJob where trainers, and what vLLM serves, need more GPUs than there are; without any they use the
    CPU."""
    alone = [role for role in roles_of(spec) if _alone(spec, role)]
    needed = sum(replicas(spec, role) * gpus_each(spec, role)[0] for role in alone)
    if gpus and needed > len(gpus):
        message = (
            f"{', '.join(alone)} need {needed} GPUs, this machine has {len(gpus)}; use fewer, or "
            "`spec.generator.sharedWithTrainer: true`, or hide the GPUs with CUDA_VISIBLE_DEVICES="
        )
        raise InvalidJob([Problem("spec", message)])


def _alone(spec: Spec, role: Role) -> bool:
    """Its processes share no GPU with others: vLLM takes most of one at its start."""
    return role.row.work == "train" or on_vllm(spec, role)


def variables(spec: Spec, process: Process, gpus: Sequence[str]) -> dict[str, str]:
    """The trainers' ranks come first, then what vLLM serves, a GPU for each of its workers; reward and reference models
    of transformers get one each of what is left, and where nothing is, the first trainer's. Empty without GPUs."""
    if not gpus:
        return {}
    first = 0
    for role in sorted(roles_of(spec), key=lambda role: not _alone(spec, role)):
        size = gpus_each(spec, role)[0]
        if role is process.role:
            first += process.index * size
            return {VISIBLE: ",".join(gpus[first : first + size] or gpus[:1])}
        first += replicas(spec, role) * size
    return {}
