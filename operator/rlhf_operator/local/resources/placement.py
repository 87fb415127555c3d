"""Decides whether a job's processes share this machine's GPUs, and says why, with the division of memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.contract.run import generates_in_turns, roles_of
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.sharing.divide import by_hand, divide
from rlhf_api.estimate.sharing.places import separate_gpus, separate_roles
from rlhf_api.estimate.sharing.problems import problems, problems_without_sizes
from rlhf_api.estimate.sizes import FileSizes, Sizes
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from . import gpus


@dataclass(frozen=True)
class Placement:
    """`spec.placement` decided for this machine."""

    shared_gpus: bool = False
    shared_gpu_count: int = 0
    """The two fields of a run's configuration."""
    lines: tuple[str, ...] = ()
    """The decision and its reasons; none for processes that are apart."""


def decide(spec: Spec, present: Sequence[str], file_sizes: FileSizes, memory: float | None) -> Placement:
    """The placement on the GPUs `present`, of `memory` bytes each if that is known. Raises InvalidJob if neither way is
    possible, or the one that the manifest names is not."""
    several, count = len(set(present)) < len(present), len(present)
    if spec.placement == "shared" and several:
        message = "names a GPU several times, which divides it by hand; name each once, or use placement auto"
        raise InvalidJob([Problem(gpus.VISIBLE, f"{message}; got {','.join(present)}")])
    fits_apart = several or separate_gpus(spec) <= count
    if spec.placement == "separate" or (spec.placement == "auto" and (fits_apart or not present)):
        gpus.check(spec, present)
        return Placement()
    sizes = Sizes.of(spec, file_sizes)
    later = _on_hub(spec) if present and sizes.policy is None else ""
    if wrong := problems_without_sizes(spec, count) if later else problems(spec, sizes, memory, count):
        raise InvalidJob([_with_reason(spec, problem, count) for problem in wrong])
    division = divide(spec, sizes, memory, count) if present and memory is not None else None
    words = [*filter(None, [later]), *(division.lines if division else ())]
    return Placement(True, count, (_decision(spec, count), *words))


def find_placement(spec: Spec, environ: Mapping[str, str], file_sizes: FileSizes) -> Placement:
    """The placement on this machine's GPUs, with the job's own variables over `environ`. Raises InvalidJob."""
    present = gpus.present({**environ, **spec.env})
    return decide(spec, present, file_sizes, gpus.memory(present))


def foresee(spec: Spec, environ: Mapping[str, str], file_sizes: FileSizes) -> list[str]:
    """Lines of `rlhf run` about the placement on this machine, a refusal too. Nothing without GPUs, where the job
    may be meant for another machine."""
    try:
        if spec.placement != "shared" and not gpus.present({**environ, **spec.env}):
            return []
        return [f"on this machine: {line}" for line in find_placement(spec, environ, file_sizes).lines]
    except InvalidJob as error:
        return [f"on this machine `rlhf run` refuses it: {problem}" for problem in error.problems]


def _decision(spec: Spec, count: int) -> str:
    names = " and ".join(role.value for role in separate_roles(spec))
    turns = generates_in_turns(spec)
    if not count:
        return f"placement shared, without GPUs: {names} {'take turns' if turns else 'run at once'}"
    reason = f"{names} share {count} GPU{'s' if count > 1 else ''}"
    if spec.placement == "auto":
        reason = f"{_too_few(spec, count)}: they share {'it' if count == 1 else 'them'}"
    how = "taking turns, as responses are sampled only while the trainer waits"
    if not turns:
        overlaps = ", as responses are sampled while the trainer computes"
        how = f"its memory divided for good{overlaps if Role.GENERATOR in roles_of(spec) else ''}"
    return f"placement {spec.placement}: {reason}, {how}"


def _on_hub(spec: Spec) -> str:
    """The later division where nothing of a policy of the hub is here yet, in words; '' where something is."""
    name = spec.model.policy
    if name is None or Path(name).is_dir() or by_hand(spec, Role.GENERATOR):
        return ""
    return f"its memory is divided once the configuration of {name} is here; spec.model.parameters would say it now"


def _too_few(spec: Spec, count: int) -> str:
    names = ", ".join(role.value for role in separate_roles(spec))
    return f"{names} need {separate_gpus(spec)} GPUs, this machine has {count}"


def _with_reason(spec: Spec, problem: Problem, count: int) -> Problem:
    if spec.placement == "shared":
        return problem
    return Problem(problem.where, f"{_too_few(spec, count)}, and they cannot share: {problem.message}")
