"""Oversampling: a step asks for more prompts than it trains on, and stops those whose responses are complete last.
These make steps of their own, which stop none: "tail batching" (Gao et al. 2025, arXiv:2509.21009).
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Any


class Oversampling:
    """Numbers of the prompts to ask for, and those that were stopped. The same on every rank.

    A prompt is stopped once at most. All that are stopped fit into the steps that are left: the run trains on the same
    prompts as without, each once, in another order.
    """

    def __init__(self, share: float, per_step: int) -> None:
        """`share`: prompts to stop over those to train on; `per_step`: those that a step trains on."""
        self._share, self._per_step = share, per_step
        self._stopped = set[int]()
        """Positions, of prompts that have no response yet."""
        self._requested = self._stops = 0

    def choose(self, again: Sequence[int], count: int, later: int) -> tuple[list[int], int]:
        """The positions, of those to be asked `again`, that `count` prompts to train on begin with, and the number of
        fresh ones to ask for beside them; `later`: prompts that the steps after this one train on."""
        stopped = [at for at in again if at in self._stopped]
        others = [at for at in again if at not in self._stopped]
        most = later - len(stopped)
        extra = min(ceil(round(self._share * count, 6)), most)
        if extra <= 0 or len(stopped) >= count == self._per_step:
            chosen, requested = [*stopped, *others][:count], count
        else:
            chosen, requested = others[: count + extra], count + extra
        self._requested += requested
        return chosen, requested - len(chosen)

    def stop(self, positions: Sequence[int]) -> None:
        """Records prompts whose responses were stopped."""
        self._stopped |= {*positions}
        self._stops += len(positions)

    def keep(self, held: Collection[int]) -> None:
        """Forgets all prompts but those that are in progress or to be asked again."""
        self._stopped &= {*held}

    def take_metrics(self) -> dict[str, float]:
        """`stopped_share`: of the prompts asked since the last call, the share that was stopped; empty without
        oversampling."""
        requested, stops = self._requested, self._stops
        self._requested = self._stops = 0
        return {"stopped_share": stops / requested} if self._share and requested else {}

    def state(self) -> dict[str, Any]:
        """State for a snapshot: nothing where none is stopped."""
        return {"stopped": sorted(self._stopped)} if self._stopped else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._stopped = set(state.get("stopped", ()))
