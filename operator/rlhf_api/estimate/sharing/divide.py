"""Divides the memory of GPUs that trainer ranks, engines and frozen models share; pure.

In turns, each phase has the whole GPU but for what the others never give up: while the trainer computes the engine
sleeps, without weights and cache, and while it generates the trainer has weights and optimizer states alone. Divided,
all is there at once. What is left of the fullest GPU is the generators' KV cache, of a size in bytes: by itself vLLM
would also take what the others need later.
"""

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from ...contract.run import generates_in_turns, roles_of
from ...roles import Role
from ...spec import Spec
from ..memory import Need
from ..serving import CACHE, UTILIZATION, Serving, engine_section
from ..sizes import Sizes
from ..trainer_memory import counted, trained
from .division import Division, Phase, engine_options
from .places import Shared, occupants
from .use import Use, frozen_cache, frozen_use


def divide(spec: Spec, sizes: Sizes, memory: float, count: int, activations: float = 1.0) -> Division | None:
    """The memory of `count` shared GPUs, of `memory` bytes each, with this share of the trainer's activations; None if
    the policy's size is unknown, or what vLLM takes."""
    generates = Role.GENERATOR in roles_of(spec)
    serving = Serving.of(spec, sizes) if generates else None
    if sizes.policy is None or (generates and serving is None):
        return None
    use = Use(spec, sizes, memory, activations, serving)
    return Division(
        memory=memory,
        phases=[*_phases(use, occupants(spec, count))],
        served=sum(need.total for need in use.serves),
        least=use.least_cache,
        most=use.most_cache,
        given=serving.cache if serving else None,
    )


def generator_options(spec: Spec, sizes: Sizes, memory: float, count: int) -> dict[str, JsonValue]:
    """Memory options of a generator on shared GPUs; none if the manifest gives both, or a size is unknown."""
    division = None if by_hand(spec, Role.GENERATOR) else divide(spec, sizes, memory, count)
    return {} if division is None else division.options


def frozen_options(spec: Spec, role: Role, sizes: Sizes, memory: float) -> dict[str, JsonValue]:
    """Memory options of a frozen model under vLLM on shared GPUs; none if the manifest gives both, or its size is
    unknown."""
    size, need = sizes.frozen.get(role), frozen_use(spec, role, sizes, memory)
    if size is None or need is None or by_hand(spec, role):
        return {}
    cache = frozen_cache(spec, role, size)
    return engine_options(memory, need.total - cache, cache)


def by_hand(spec: Spec, role: Role) -> bool:
    """True if the manifest gives both of vLLM's memory options for the role."""
    return {UTILIZATION, CACHE} <= engine_section(spec, role).engine_arguments.keys()


def _phases(use: Use, gpus: Sequence[Shared]) -> Iterator[Phase]:
    """The fullest GPU in each phase; the first phase is that of the KV cache."""
    serving, training = [gpu for gpu in gpus if gpu.generator], [gpu for gpu in gpus if gpu.trainer]
    if generates_in_turns(use.spec):
        yield _fullest("while it generates", use, serving, use.idle, use.serves)
        yield _fullest("while new weights arrive", use, serving, use.sending, use.receives)
        yield _fullest("while it trains", use, training, use.peak, use.sleeps)
        return
    if serving:
        phase = _fullest("at once", use, serving, use.peak, use.receives)
        unknown = not counted(trained(use.spec, use.sizes))
        rest = Need(
            max(0.0, use.memory - phase.total) / 2, "activations, whose size is unknown: half of the rest"
        )
        yield Phase(phase.name, (*phase.parts, rest)) if unknown else phase
    if alone := [gpu for gpu in training if not gpu.generator]:
        yield _fullest("without a generator", use, alone, use.peak, ())


def _fullest(
    name: str, use: Use, gpus: Sequence[Shared], rank: Sequence[Need], engine: Sequence[Need]
) -> Phase:
    def on(gpu: Shared) -> Phase:
        frozen = [use.frozen[role] for role in gpu.frozen if role in use.frozen]
        return Phase(name, (*(rank if gpu.trainer else ()), *(engine if gpu.generator else ()), *frozen))

    return max(map(on, gpus), key=lambda phase: phase.total)
