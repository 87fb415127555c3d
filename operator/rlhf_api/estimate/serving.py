"""GPU memory of vLLM: frozen weights; for a generator, served and received weights, KV cache, utilization; pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from ..errors.problem import Problem
from ..roles import Role
from ..sections.roles import Generator, ModelServerSpec
from ..spec import Spec
from .memory import Need, gigabytes, weights
from .sizes import Sizes

UTILIZATION, CACHE = "gpu-memory-utilization", "kv-cache-memory-bytes"
"""vLLM's two options for the memory that it takes on a GPU."""
REFERENCE_SHARE = 0.85
"""The share for a reference: prompt log-probabilities need memory beside it."""
_MOST = 0.92
"""vLLM's default `gpu-memory-utilization`, and the maximum if none is given."""
PIPELINE, COPIES, _CONTEXT = "pipeline-parallel-size", "data-parallel-size", "prefill-context-parallel-size"
_OTHER_SIZE = ("quantization", "cpu-offload-gb")
"""Options with which the weights on a GPU do not follow from parameters and dtype."""
BESIDE = 4e9
"""Bytes that vLLM was observed to take beyond its utilization (CUDA context, graphs, fragmentation), rounded up: 1.4e9
on an H100, more than 3.0e9 on an H200."""
_MOST_GPUS = 64
_LARGEST = 10**15
"""JSON integers are unbounded, but floats are not."""


def on_vllm(spec: Spec, role: Role) -> bool:
    """True if the role's processes are vLLM servers, or hold a frozen model under vLLM."""
    return role.row.work == "generate" or getattr(spec.section(role), "engine", None) == "vllm"


def engine_section(spec: Spec, role: Role) -> Generator | ModelServerSpec:
    """The section of a role whose processes run vLLM."""
    return spec.generator if role.row.work == "generate" else spec.model_server(role)


def gpus(section: Generator | ModelServerSpec) -> tuple[int, str]:
    """Number of GPUs of one vLLM, and where it comes from."""
    arguments, tensor = section.engine_arguments, section.tensor_parallel_size
    sizes = {"tensorParallelSize": tensor}
    sizes |= {name: _size(arguments.get(name)) for name in (PIPELINE, COPIES, _CONTEXT)}
    words = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    return math.prod(sizes.values()), words or "tensorParallelSize 1"


def data_parallel(section: Generator | ModelServerSpec) -> int:
    """Number of copies of the model in one vLLM, among which it divides its requests."""
    return _size(section.engine_arguments.get(COPIES))


def frozen_need(spec: Spec, role: Role, parameters: float) -> Need | None:
    """Weights of a frozen model of `parameters` parameters on one GPU of its role; None if vLLM's arguments offload or
    quantize them."""
    section = spec.model_server(role)
    arguments = section.engine_arguments
    if any(name in arguments for name in _OTHER_SIZE):
        return None
    parts = section.tensor_parallel_size * _size(arguments.get(PIPELINE))
    return weights(parameters, section.dtype or spec.model.dtype, parts)


def filled(spec: Spec, role: Role) -> float:
    """The share of a GPU that vLLM may fill for a role's frozen model; 1 if the size of its cache is given instead."""
    arguments = spec.model_server(role).engine_arguments
    if CACHE in arguments:
        return 1.0
    usual = REFERENCE_SHARE if role.row.work == "infer" else _MOST
    return number(arguments.get(UTILIZATION)) or usual


def left_open(spec: Spec) -> bool:
    """True if the manifest sets neither vLLM's share of a GPU nor the size of its cache."""
    return not {UTILIZATION, CACHE} & spec.generator.engine_arguments.keys()


@dataclass(frozen=True)
class Serving:
    """One GPU of a generator that serves a policy of known size."""

    served: Need
    """The serving weights, divided over tensor and pipeline parallel GPUs."""
    received: Need
    """New weights, whole on every GPU and as the trainer computes, until they are swapped in; or the frozen ones of a
    policy with an adapter, which stay."""
    adapted: bool
    """The policy has an adapter."""
    tensor_parallel: int
    given: float | None
    """The manifest's share of the GPU for vLLM, if it is a number."""
    cache: float | None
    """Bytes of the KV cache, if the manifest gives a number."""
    left_open: bool

    @classmethod
    def of(cls, spec: Spec, sizes: Sizes) -> "Serving | None":
        """The memory of a generator's GPU; None if the policy's size is unknown, or the arguments offload or quantize
        weights."""
        generator, arguments = spec.generator, spec.generator.engine_arguments
        if sizes.policy is None or any(name in arguments for name in _OTHER_SIZE):
            return None
        parameters = sizes.policy.parameters
        parts = generator.tensor_parallel_size * _size(arguments.get(PIPELINE))
        cached = CACHE in arguments
        return cls(
            served=weights(parameters, generator.dtype or spec.model.dtype, parts),
            received=weights(parameters, spec.trained_dtype("policy")),
            adapted=spec.model.adapter("policy") is not None,
            tensor_parallel=generator.tensor_parallel_size,
            given=None if cached else number(arguments.get(UTILIZATION)),
            cache=number(arguments[CACHE]) if cached else None,
            left_open=left_open(spec),
        )

    @property
    def need(self) -> Need:
        what, then = self._what
        beside = f"{gigabytes(self.received.total)} GB of {what} {then} beside them"
        return Need(self.served.total + self.received.total, f"{self.served.words} + {beside}")

    def utilization(self, memory: float) -> float | None:
        """vLLM's share of a GPU of `memory` bytes: as given, else what leaves room for the new weights; None if the
        size of its cache is given instead."""
        return self._chosen(memory) if self.left_open else self.given

    def kv_cache_bytes(self, memory: float) -> float | None:
        """Bytes left for the KV cache and vLLM's buffers, on GPUs of `memory` bytes."""
        filled = self.utilization(memory)
        return None if filled is None else filled * memory - self.served.total

    def problems(self, memory: float) -> Iterator[Problem]:
        """Problems of settings that do not fit GPUs of `memory` bytes."""
        what, then = self._what
        room, has = memory - self.received.total, f"{memory / 1e9:g} GB"
        where = "spec.generator.engineArguments."
        shortage = f"one GPU must hold {gigabytes(self.need.total)} GB: {self.need.words}; it has {has}"
        crowded = self.left_open and self._chosen(memory) * memory <= self.served.total
        if crowded or self.need.total >= memory:
            yield Problem("spec.generator", f"{shortage}; {self._more_gpus(memory)}")
        elif self.cache is not None and self.served.total + self.cache > room:
            most = math.floor(room - self.served.total)
            yield Problem(where + CACHE, f"with it, {shortage}; use at most {most}; got {self.cache:.0f}")
        elif self.given is not None and self.given * memory > room:
            yield Problem(
                where + UTILIZATION,
                f"vLLM fills {gigabytes(self.given * memory)} of {has}, but {gigabytes(self.received.total)} GB "
                f"of {what} ({self.received.words}) are {then} beside it; {self._less(memory)}; "
                f"got {self.given:g}",
            )
        elif self.given is not None and self.given * memory <= self.served.total:
            least = _hundredths(self.served.total / memory)
            yield Problem(
                where + UTILIZATION,
                f"vLLM may fill {gigabytes(self.given * memory)} of {has}, and the weights alone are "
                f"{gigabytes(self.served.total)} GB ({self.served.words}); use more than {least:g}; "
                f"got {self.given:g}",
            )

    def _chosen(self, memory: float) -> float:
        return min(_MOST, self._most(memory))

    def _most(self, memory: float) -> float:
        return _hundredths((memory - self.received.total - BESIDE) / memory)

    def _less(self, memory: float) -> str:
        most = self._most(memory)
        if most * memory > self.served.total:
            return f"use at most {most:g}"
        return self._more_gpus(memory)

    def _more_gpus(self, memory: float) -> str:
        """The smallest power of two as tensorParallelSize with which a cache fits too."""
        whole, parallel = self.served.total * self.tensor_parallel, self.tensor_parallel
        while parallel < _MOST_GPUS:
            parallel *= 2
            if whole / parallel + self.received.total + BESIDE < memory:
                return f"use spec.generator.tensorParallelSize {parallel}"
        least = gigabytes(self.received.total + BESIDE)
        return f"use GPUs of more than {least} GB: {self._what[0]} come whole to every GPU"

    @property
    def _what(self) -> tuple[str, str]:
        """Noun and verb for the weights beside those that serve, in messages."""
        return ("frozen weights", "kept") if self.adapted else ("new weights", "received")


def _hundredths(part: float) -> float:
    """Rounded down to hundredths, at least 0."""
    return math.floor(100 * max(0.0, part)) / 100


def _size(value: JsonValue) -> int:
    return min(value, _LARGEST) if isinstance(value, int) and value > 0 else 1


def number(value: JsonValue) -> float | None:
    """A number; None for values that vLLM parses itself, such as `20G`."""
    return float(min(value, _LARGEST)) if isinstance(value, int | float) else None
