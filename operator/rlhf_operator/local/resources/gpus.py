"""Assigns this machine's GPUs to a job's processes.

NCCL refuses two members of a group on one GPU of one host. Processes that share a GPU, because CUDA_VISIBLE_DEVICES
names it more than once, therefore claim to be on different hosts. `spec.placement: shared` needs no such claim: weights
within a GPU go without NCCL, and no other group has two members there.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile

from rlhf_api.contract.run import Process, RunConfig, places, roles_of
from rlhf_api.contract.teachers import role_field, view_of
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.resources import gpus_each
from rlhf_api.estimate.serving import CACHE, UTILIZATION, engine_section, on_vllm
from rlhf_api.estimate.sharing.places import separate_gpus, separate_roles, shared_places
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOST = "NCCL_HOSTID"
_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")
LIST = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
MEMORY = (
    "nvidia-smi",
    "--query-gpu=index,uuid,memory.total,memory.reserved",
    "--format=csv,noheader,nounits",
)
LIST_SECONDS = 60.0


def present(environ: Mapping[str, str]) -> list[str]:
    """This machine's GPUs: what CUDA_VISIBLE_DEVICES names, else all that the driver lists. Files in /dev would not do:
    in a container they keep the host's numbers, and under some hypervisors there are none.

    As to CUDA, the first word that can name none, such as -1 or a scheduler's NoDevFiles, hides all from there on.
    Raises InvalidJob for a number that the driver does not list, since CUDA would see no GPU, and the job would run on
    the CPU; and for numbers beside UUIDs, which may name one GPU twice.
    """
    if VISIBLE not in environ:
        return listed()
    named = [*takewhile(_NAME.fullmatch, (name.strip() for name in environ[VISIBLE].split(",")))]
    if unknown := [name for name in named if name.isdecimal() and listed() and name not in listed()]:
        message = f"the driver lists {', '.join(listed())}; got {', '.join(unknown)}"
        raise InvalidJob([Problem(VISIBLE, message)])
    if len({name.isdecimal() for name in named}) > 1:
        message = f"numbers beside UUIDs may name one GPU twice; use either; got {', '.join(named)}"
        raise InvalidJob([Problem(VISIBLE, message)])
    return named


@cache
def listed() -> list[str]:
    """Indexes of all GPUs that the driver finds; none without a driver."""
    return _ask_driver(LIST).split()


def memory(gpus: Sequence[str]) -> float | None:
    """Bytes of the smallest of these GPUs, as CUDA counts them; None without GPUs, or where the driver does not tell,
    as of a part of one (MIG)."""
    each: dict[str, float] = {}
    for line in _ask_driver(MEMORY).splitlines():
        index, uuid, *mebibytes = (word.strip() for word in line.split(","))
        if len(mebibytes) == 2 and all(word.isdecimal() for word in mebibytes):
            total, reserved = map(int, mebibytes)
            each |= dict.fromkeys((index, uuid), float((total - reserved) << 20))
    known = [each.get(gpu) for gpu in gpus]
    return min((size for size in known if size), default=None) if all(known) else None


def _ask_driver(command: Sequence[str]) -> str:
    """Output of the driver's tool; '' without one, or if it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIST_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout


def check(spec: Spec, gpus: Sequence[str]) -> None:
    """Of processes that are apart: raises InvalidJob if trainers and vLLM need more GPUs than there are, or cannot
    share one that is named more than once; without any GPU they use the CPU."""
    alone, needed = separate_roles(spec), separate_gpus(spec)
    if gpus and needed > len(gpus):
        message = (
            f"{', '.join(alone)} need {needed} GPUs, this machine has {len(gpus)}; use fewer, or "
            "`spec.placement: shared`, or `spec.generator.sharedWithTrainer: true`, or name a GPU as often as processes"
            f" share it ({VISIBLE}=0,0), or hide the GPUs with {VISIBLE}="
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
        view = view_of(spec, place.role, place.index)
        if not on_vllm(view, place.role) or all(used.count(gpu) == 1 for gpu in mine):
            continue
        if not {UTILIZATION, CACHE} <= engine_section(view, place.role).engine_arguments.keys():
            yield Problem(
                f"{role_field(view, place.role)}.engineArguments",
                f"vLLM would fill the GPU of {place.name}, which another process has too: set {CACHE} to what is left "
                f"of it for the cache, and {UTILIZATION} to the part that vLLM is to find free at its start",
            )


def variables(config: RunConfig, process: Process, gpus: Sequence[str]) -> dict[str, str]:
    """Environment with the GPUs of a process. Apart, trainer ranks come first, then vLLM, one GPU per worker; reward
    and reference models under transformers get one of the rest each, or else the first trainer's. Empty without
    GPUs."""
    if config.shared_gpus and gpus:
        at = shared_places(config.spec, len(gpus))[process.role, process.index, process.rank]
        return {VISIBLE: ",".join(gpus[i] for i in at)}
    mine = [*_assigned_gpus(config.spec, process, gpus)]
    several = {HOST: process.name} if any(gpus.count(gpu) > 1 for gpu in mine) else {}
    return {VISIBLE: ",".join(mine), **several} if mine else {}


def _assigned_gpus(spec: Spec, process: Process, gpus: Sequence[str]) -> Sequence[str]:
    first, alone = 0, separate_roles(spec)
    for role in sorted(roles_of(spec), key=lambda role: role not in alone):
        for index, rank in places(spec, role):
            size = gpus_each(view_of(spec, role, index), role)[0]
            if (role, index, rank) == (process.role, process.index, process.rank):
                return gpus[first : first + size] or gpus[:1]
            first += size
    return ()
