"""The division of a GPU's memory between processes that share it, in bytes and in words; pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ..memory import Need, gigabytes
from ..serving import CACHE, UTILIZATION

SPARE = 0.03
"""Share of a GPU that is left free: estimates are right within a few percent, and allocators round up."""
_STEP = 1e8
"""Caches are multiples of so many bytes."""


@dataclass(frozen=True)
class Phase:
    """Parts of the fullest GPU's memory at one time, besides the generator's KV cache."""

    name: str
    parts: tuple[Need, ...]

    @property
    def total(self) -> float:
        return sum(part.total for part in self.parts)

    @property
    def words(self) -> str:
        return " + ".join(f"{gigabytes(part.total)} GB of {part.words}" for part in self.parts if part.total)


@dataclass(frozen=True)
class Division:
    """Memory of a GPU of `memory` bytes by phase; the KV cache is there in the first of them."""

    memory: float
    phases: Sequence[Phase]
    served: float
    """Bytes that vLLM has while it serves, without the cache; 0 without generators."""
    least: float
    """Bytes of the smallest KV cache that serves the longest sequence."""
    most: float = math.inf
    """Bytes of a KV cache that holds all sequences which are generated at once: a larger one would only take longer to
    come back after a sleep."""
    given: float | None = None
    """Bytes of the KV cache, if the manifest gives them."""

    @property
    def cache(self) -> float:
        """Bytes of the KV cache; 0 without generators, or where nothing is left."""
        rest = (1 - SPARE) * self.memory - self.phases[0].total
        left = max(0.0, math.floor(min(rest, self.most) / _STEP) * _STEP)
        return 0.0 if not self.served else left if self.given is None else self.given

    @property
    def options(self) -> dict[str, JsonValue]:
        """vLLM's options."""
        return engine_options(self.memory, self.served, self.cache)

    @property
    def lines(self) -> list[str]:
        """A line of each phase, and one of vLLM's options."""
        has = f"{self.memory / 1e9:.4g} GB"
        lines = [f"{phase.name} {gigabytes(phase.total)} of {has}: {phase.words}" for phase in self.phases]
        if self.served:
            words = ", ".join(f"{name} {value}" for name, value in self.options.items())
            reason = "as engineArguments say"
            if self.given is None:
                enough = self.cache > self.most - _STEP
                reason = "for all sequences at once" if enough else f"what is left but {SPARE:.0%}"
            lines.append(f"KV cache {gigabytes(self.cache)} GB, {reason} ({words})")
        return lines

    @property
    def shortage(self) -> str:
        """The shortage of a phase, with its arithmetic; '' if all does."""
        for phase in self.phases:
            if phase.total > self.memory:
                has = f"{phase.words}; it has {self.memory / 1e9:.4g} GB"
                return f"{phase.name} one GPU must hold {gigabytes(phase.total)} GB: {has}"
        return self.without_cache

    @property
    def without_cache(self) -> str:
        """The problem with the room for the KV cache; '' if nothing is."""
        first = self.phases[0]
        beside = f"{gigabytes(first.total)} GB: {first.words}; it has {self.memory / 1e9:.4g} GB"
        if self.served and self.cache < self.least:
            short = (
                f"{gigabytes(self.cache)} GB are left for the KV cache, which needs {gigabytes(self.least)}"
            )
            return f"{first.name} {short}, beside {beside}"
        if self.given is not None and self.given + first.total > self.memory:
            return f"{first.name} {gigabytes(self.given)} GB of KV cache do not fit beside {beside}"
        return ""


def engine_options(memory: float, served: float, cache: float) -> dict[str, JsonValue]:
    """Options of a vLLM on a shared GPU: the size of its cache, and the share of the GPU that it must find free when it
    starts. That is for its weights alone: the others may still have what loading takes, and have given it back by the
    time that it makes its cache."""
    share = math.floor(100 * served / memory) / 100
    return {CACHE: int(cache), UTILIZATION: min(1.0, max(0.01, share))}
