"""Problems of a job whose processes share GPUs, and the fields that would make it fit; pure."""

from collections.abc import Iterator
from itertools import combinations
from typing import get_args

from ...contract.run import generates_in_turns, places, role_views, roles_of
from ...contract.teachers import role_field
from ...errors.problem import Problem, show
from ...roles import Role
from ...sections.deepspeed import OffloadOptimizer
from ...sections.roles import GradientCheckpointing
from ...spec import Spec
from ..remedies import CERTAIN
from ..serving import CACHE, UTILIZATION, Serving, engine_section, number, on_vllm
from ..sizes import Sizes
from .divide import by_hand, divide
from .places import count_problems

Change = tuple[str, Spec]
"""A change of the manifest in words, and the spec after it."""
PLACEMENT = "spec.placement"


def problems(spec: Spec, sizes: Sizes, memory: float | None, count: int) -> list[Problem]:
    """All problems of a job on `count` shared GPUs of `memory` bytes each, None if that is not known; 0: on CPUs."""
    if wrong := problems_without_sizes(spec, count):
        return wrong
    if not count:
        return []
    if unknown := [*_sizes(spec, sizes)]:
        return unknown
    if memory is None or not (words := _shortage(spec, sizes, memory, count)):
        return []
    return [Problem(PLACEMENT, f"on shared GPUs, {words}; {_remedies(spec, sizes, memory, count)}")]


def problems_without_sizes(spec: Spec, count: int) -> list[Problem]:
    """Problems that hold whatever the sizes of the models are."""
    return [*count_problems(spec, count)] or ([*_options(spec)] if count else [])


def _options(spec: Spec) -> Iterator[Problem]:
    """Problems of vLLM's memory options: of two, the share alone, and sizes that only vLLM itself reads."""
    for role, view in role_views(spec):
        if not on_vllm(view, role):
            continue
        where = f"{role_field(view, role)}.engineArguments"
        arguments = engine_section(view, role).engine_arguments
        if UTILIZATION in arguments and CACHE not in arguments:
            message = (
                f"on shared GPUs vLLM would fill this share, whatever the others need: set {CACHE} too, or"
            )
            yield Problem(
                f"{where}.{UTILIZATION}", f"{message} leave this out; got {show(arguments[UTILIZATION])}"
            )
        if CACHE in arguments and number(arguments[CACHE]) is None:
            message = "on shared GPUs use a number of bytes"
            yield Problem(f"{where}.{CACHE}", f"{message}; got {show(arguments[CACHE])}")


def _sizes(spec: Spec, sizes: Sizes) -> Iterator[Problem]:
    """Problems of what is not known, unless the manifest divides the memory itself."""
    if Role.GENERATOR not in roles_of(spec) or by_hand(spec, Role.GENERATOR):
        return
    both = f"{CACHE} and {UTILIZATION} in spec.generator.engineArguments"
    if sizes.policy is None:
        message = f"is needed to divide the memory of shared GPUs; set it, such as 7.6e9, or {both}"
        yield Problem("spec.model.parameters", message)
    elif Serving.of(spec, sizes) is None:
        message = f"what vLLM takes of a shared GPU does not follow from these; set {both}"
        yield Problem("spec.generator.engineArguments", message)


def _shortage(spec: Spec, sizes: Sizes, memory: float, count: int) -> str:
    """The shortage that is certain, also of a cache; '' if all does."""
    certain, division = (
        divide(spec, sizes.certain, memory, count, CERTAIN),
        divide(spec, sizes, memory, count),
    )
    if certain is None or division is None:
        return ""
    return division.shortage if certain.shortage else division.without_cache


def _remedies(spec: Spec, sizes: Sizes, memory: float, count: int) -> str:
    """The changes each of which is enough, or else the first two that are together."""
    changes = [*_changes(spec, count)]
    enough: dict[str, str] = {}
    for words, after in changes:
        field = words.partition(" ")[0]
        if field not in enough and not _shortage(after, sizes, memory, count):
            enough[field] = words
    if enough:
        return f"use {', or '.join(enough.values())}"
    for (first, after), (second, _) in combinations(changes, 2):
        both = next((spec for words, spec in _changes(after, count) if words == second), None)
        if both is not None and not _shortage(both, sizes, memory, count):
            return f"use {first} and {second}"
    return (
        "use larger GPUs, a smaller model, an adapter (spec.model.lora), or more GPUs with placement separate"
    )


def _changes(spec: Spec, count: int) -> Iterator[Change]:
    if Role.GENERATOR in roles_of(spec):
        yield from _of_generator(spec, count)
    trainer = spec.trainer

    def after(field: str, value: object) -> Spec:
        return spec.model_copy(update={"trainer": trainer.model_copy(update={field: value})})

    kinds = get_args(GradientCheckpointing)
    for kind in kinds[kinds.index(trainer.gradient_checkpointing) + 1 :]:
        yield f"trainer.gradientCheckpointing {kind}", after("gradient_checkpointing", kind)
    zero, stage = trainer.deepspeed.zero_optimization, trainer.deepspeed.stage(spec.trained_dtype("policy"))
    where = "trainer.deepspeed.zero_optimization"

    def with_zero(field: str, value: object) -> Spec:
        changed = zero.model_copy(update={field: value})
        return after("deepspeed", trainer.deepspeed.model_copy(update={"zero_optimization": changed}))

    for higher in range(stage + 1, 4) if trainer.ranks > 1 else ():
        yield f"{where}.stage {higher}", with_zero("stage", higher)
    if stage > 0 and (zero.offload_optimizer is None or zero.offload_optimizer.device == "none"):
        away = with_zero("offload_optimizer", OffloadOptimizer(device="cpu"))
        yield f"{where}.offload_optimizer.device cpu", away


def _of_generator(spec: Spec, count: int) -> Iterator[Change]:
    generator = spec.generator
    if not generates_in_turns(spec):
        section = spec.rollout.model_copy(update={"max_staleness": 0})
        changed = {
            "rollout": section,
            "replay": spec.replay.model_copy(update={"stream_data_loader_type": "fixed"}),
            "weights": spec.weights.model_copy(update={"every_steps": 1}),
        }
        yield f"{_not_in_turns(spec)}, with which they take turns", spec.model_copy(update=changed)
    if CACHE in generator.engine_arguments:
        rest = {k: v for k, v in generator.engine_arguments.items() if k not in (CACHE, UTILIZATION)}
        changed_generator = generator.model_copy(update={"engine_arguments": rest})
        yield f"engineArguments without {CACHE}", spec.model_copy(update={"generator": changed_generator})
    parallel = 2 * generator.tensor_parallel_size
    while parallel * len(places(spec, Role.GENERATOR)) <= count:
        changed_generator = generator.model_copy(update={"tensor_parallel_size": parallel})
        yield (
            f"generator.tensorParallelSize {parallel}",
            spec.model_copy(update={"generator": changed_generator}),
        )
        parallel *= 2


def _not_in_turns(spec: Spec) -> str:
    """The fields that keep generators and trainer from taking turns, with the values that would let them."""
    fields = {
        "rollout.maxStaleness 0": spec.rollout.max_staleness > 0,
        "replay.streamDataLoaderType fixed": spec.replay.dynamic,
        "weights.everySteps 1": spec.weights.every_steps > 1,
    }
    return " with ".join(words for words, given in fields.items() if given)
