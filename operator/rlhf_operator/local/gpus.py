"""Assigns this machine's GPUs to a job's processes.

NCCL refuses two members of a group on one GPU of one host. Processes that share a GPU, because CUDA_VISIBLE_DEVICES
names it more than once, therefore claim to be on different hosts, and their weights are sent by TCP.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile

from rlhf_api.contract.run import Process, places, pods_each, roles_of
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.resources import gpus_each
from rlhf_api.estimate.serving import CACHE, UTILIZATION, engine_section, on_vllm
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOST = "NCCL_HOSTID"
_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")
LIST = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
LIST_SECONDS = 60.0


def present(environ: Mapping[str, str]) -> list[str]:
    """This machine's GPUs: what CUDA_VISIBLE_DEVICES names, else all that the driver lists. Files in /dev would not do:
    in a container they keep the host's numbers, and under some hypervisors there are none.

    As to CUDA, the first word that can name none, such as -1 or a scheduler's NoDevFiles, hides all from there on.
    Raises InvalidJob for a number that the driver does not list: CUDA would see no GPU, and the job would run on the
    CPU.
    """
    if VISIBLE not in environ:
        return listed()
    named = [*takewhile(_NAME.fullmatch, (name.strip() for name in environ[VISIBLE].split(",")))]
    if unknown := [name for name in named if name.isdecimal() and listed() and name not in listed()]:
        message = f"the driver lists {', '.join(listed())}; got {', '.join(unknown)}"
        raise InvalidJob([Problem(VISIBLE, message)])
    return named


@cache
def listed() -> list[str]:
    """Indexes of all GPUs that the driver finds; none without a driver."""
    try:
        listed = subprocess.run(LIST, capture_output=True, text=True, timeout=LIST_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


def check(spec: Spec, gpus: Sequence[str]) -> None:
    """Raises InvalidJob if trainers and vLLM need more GPUs than there are, or cannot share one that is named more than
    once; without any GPU they use the CPU."""
    alone = [role for role in roles_of(spec) if _alone(spec, role)]
    needed = sum(len(places(spec, role)) * gpus_each(spec, role)[0] for role in alone)
    if gpus and needed > len(gpus):
        message = (
            f"{', '.join(alone)} need {needed} GPUs, this machine has {len(gpus)}; use fewer, or "
            f"`spec.generator.sharedWithTrainer: true`, or name a GPU as often as processes share it ({VISIBLE}=0,0), "
            f"or hide the GPUs with {VISIBLE}="
        )
        raise InvalidJob([Problem("spec", message)])
    if wrong := list(_shared(spec, alone, gpus)):
        raise InvalidJob(wrong)


def _shared(spec: Spec, alone: Sequence[Role], gpus: Sequence[str]) -> Iterator[Problem]:
    """Problems of GPUs that are named more than once."""
    processes = [Process(role, i, 0, "", "", rank) for role in alone for i, rank in places(spec, role)]
    taken = {process: _assigned_gpus(spec, process, gpus) for process in processes}
    used = [gpu for mine in taken.values() for gpu in mine]
    for place, mine in taken.items():
        if len(set(mine)) < len(mine):
            names = ",".join(mine)
            yield Problem(
                "spec", f"{place.name} has a GPU twice ({VISIBLE}: {names}); name each once for a process"
            )
        if not on_vllm(spec, place.role) or all(used.count(gpu) == 1 for gpu in mine):
            continue
        if not {UTILIZATION, CACHE} <= engine_section(spec, place.role).engine_arguments.keys():
            yield Problem(
                f"spec.{place.role}.engineArguments",
                f"vLLM would fill the GPU of {place.name}, which another process has too: set {CACHE} to what is left "
                f"of it for the cache, and {UTILIZATION} to the part that vLLM is to find free at its start",
            )


def _alone(spec: Spec, role: Role) -> bool:
    """True if the role's processes share no GPU with others: vLLM takes most of one at its start."""
    return role.row.work == "train" or on_vllm(spec, role)


def variables(spec: Spec, process: Process, gpus: Sequence[str]) -> dict[str, str]:
    """Environment with the GPUs of a process. Trainer ranks come first, then vLLM, one GPU per worker; reward and
    reference models under transformers get one of the rest each, or else the first trainer's. Empty without GPUs."""
    mine = _assigned_gpus(spec, process, gpus)
    host = {HOST: process.name} if any(gpus.count(gpu) > 1 for gpu in mine) else {}
    return {VISIBLE: ",".join(mine), **host} if mine else {}


def _assigned_gpus(spec: Spec, process: Process, gpus: Sequence[str]) -> Sequence[str]:
    first = 0
    for role in sorted(roles_of(spec), key=lambda role: not _alone(spec, role)):
        size = gpus_each(spec, role)[0]
        if role is process.role:
            first += (process.index * pods_each(spec, role) + process.rank) * size
            return gpus[first : first + size] or gpus[:1]
        first += len(places(spec, role)) * size
    return ()
