"""Memory of each process on a GPU that it shares with others, in bytes; pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf

from ...contract.teachers import views_of
from ...roles import Role
from ...spec import Spec
from ..memory import Need, between_updates, gigabytes, trainer
from ..serving import (
    BESIDE,
    CACHE,
    UTILIZATION,
    Serving,
    data_parallel,
    engine_section,
    frozen_need,
    number,
    on_vllm,
)
from ..sizes import Size, Sizes
from ..trainer_memory import trained
from ..zero import BYTES

_RANK = Need(2e9, "CUDA and NCCL of the trainer")
_ENGINE = Need(BESIDE, "CUDA, graphs and buffers of vLLM")
_FROZEN_BESIDE = 4e9
"""Bytes of CUDA and activations of a process with a frozen model."""
_FROZEN_CACHE = 2e9
"""Bytes of the KV cache of a frozen model under vLLM, unless a sequence needs more: nothing is generated with it."""
_LOGITS = 3e9
"""Bytes of a reference's logits under vLLM: of 2,048 tokens and a vocabulary of 150,000, twice in float32."""
_ROUNDED_UP = 1.1
"""The last block of each sequence's cache is not full."""
_LEAST_CACHE = 1e9
"""Bytes of the smallest KV cache of a model of unknown widths."""


@dataclass(frozen=True)
class Use:
    """The parts of a job's processes on a GPU of `memory` bytes, with this share of the trainer's activations."""

    spec: Spec
    sizes: Sizes
    memory: float
    activations: float
    serving: Serving | None
    """None without generators."""

    @property
    def idle(self) -> list[Need]:
        """A rank's between updates."""
        need = between_updates(trained(self.spec, self.sizes))
        return [Need(need.total, f"trained models ({need.words})"), _RANK]

    @property
    def sending(self) -> list[Need]:
        """A rank's while it sends weights."""
        buckets = 2e6 * self.spec.weights.bucket_megabytes
        return [*self.idle, Need(buckets, "buckets of weights")]

    @property
    def peak(self) -> list[Need]:
        """A rank's in an update."""
        need = trainer(trained(self.spec, self.sizes, self.activations))
        return [Need(need.total, f"training ({need.words})"), _RANK]

    @property
    def serves(self) -> list[Need]:
        """An engine's while it generates, without its cache."""
        if self.serving is None:
            return []
        served = self.serving.served
        return [Need(served.total, f"serving weights ({served.words})"), _ENGINE, *self._stays]

    @property
    def sleeps(self) -> list[Need]:
        """An engine's while it sleeps."""
        return [_ENGINE, *self._stays] if self.serving else []

    @property
    def receives(self) -> list[Need]:
        """An engine's while new weights arrive, without its cache."""
        new = self.serving.received if self.serving and not self.serving.adapted else None
        return [*self.serves, *([Need(new.total, f"new weights ({new.words})")] if new else [])]

    @property
    def least_cache(self) -> float:
        """Bytes of the smallest KV cache of a generator."""
        return _sequence_cache(self.spec, Role.GENERATOR, self.sizes.policy) or _LEAST_CACHE

    @property
    def most_cache(self) -> float:
        """Bytes of a KV cache for all sequences that one engine generates at once: those of the steps that are asked
        for, divided over the engines, and no more than these are sent."""
        sequence = _sequence_cache(self.spec, Role.GENERATOR, self.sizes.policy)
        if not sequence:
            return inf
        section, each = self.spec.generator, self.spec.sampling.responses_per_prompt
        rollout = self.spec.rollout
        prompts = self.spec.data.prompts_per_step * (1 + rollout.max_staleness + rollout.oversampling)
        copies = data_parallel(section)
        at_once = min(ceil(prompts / (section.replicas * copies)), ceil(section.concurrent_requests / copies))
        return max(_LEAST_CACHE, _ROUNDED_UP * at_once * each * sequence)

    @property
    def _stays(self) -> list[Need]:
        frozen = self.serving.received if self.serving and self.serving.adapted else None
        return (
            [Need(frozen.total, f"the frozen weights below the adapter ({frozen.words})")] if frozen else []
        )

    @cached_property
    def frozen(self) -> dict[Role, Need]:
        """A frozen model's, of roles whose model has a known size; of several the largest."""
        needs = {role: [*self._frozen_needs(role)] for role in self.sizes.frozen}
        return {role: max(each, key=lambda need: need.total) for role, each in needs.items() if each}

    def _frozen_needs(self, role: Role) -> Iterator[Need]:
        for view in views_of(self.spec, role):
            if need := frozen_use(view, role, self.sizes.of_view(view), self.memory):
                yield need


def frozen_use(spec: Spec, role: Role, sizes: Sizes, memory: float) -> Need | None:
    """Memory of a process with a frozen model on its GPU of `memory` bytes, in all; None if that is not known."""
    size, vllm = sizes.frozen.get(role), on_vllm(spec, role)
    arguments = engine_section(spec, role).engine_arguments if vllm else {}
    if {CACHE, UTILIZATION} <= arguments.keys():
        share = number(arguments[UTILIZATION])
        return None if share is None else Need(share * memory, f"{role.value} (by {UTILIZATION})")
    need = frozen_need(spec, role, size.parameters) if size else None
    if need is None or size is None:
        return None
    beside = _FROZEN_BESIDE + (_LOGITS if vllm and role.row.work == "infer" else 0.0)
    cache = frozen_cache(spec, role, size) if vllm else 0.0
    words = f"{need.words} + {gigabytes(beside)} GB beside" + (
        f" + {gigabytes(cache)} GB of cache" if vllm else ""
    )
    return Need(need.total + beside + cache, f"{role.value} ({words})")


def frozen_cache(spec: Spec, role: Role, size: Size) -> float:
    """Bytes of the KV cache of a frozen model under vLLM."""
    given = number(engine_section(spec, role).engine_arguments.get(CACHE))
    return given or max(_FROZEN_CACHE, _sequence_cache(spec, role, size))


def _sequence_cache(spec: Spec, role: Role, size: Size | None) -> float:
    """Bytes of KV cache on one GPU of the longest sequence that the engine takes; 0 if the model's widths are unknown,
    or the cache has a dtype of its own."""
    section = engine_section(spec, role)
    if size is None or size.shape is None or "kv-cache-dtype" in section.engine_arguments:
        return 0.0
    response = spec.longest_response if spec.graph.generates else spec.data.max_response_length
    dtype = section.dtype or spec.model.dtype
    token = 2 * size.shape.layers * size.shape.keys * BYTES[dtype] / section.tensor_parallel_size
    return token * (spec.data.max_prompt_length + response)
