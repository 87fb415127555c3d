"""Comparison of the master weights that a snapshot saves with the weights with which the model computes."""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Parameter

from ..checkpoint.wrong_snapshot import WrongSnapshot

NAMED = 3
"""Tensors that the error names."""


class LiveWeights:
    """Compares each master weight, rounded to the compute dtype, with the live weight, on every rank for what it holds.

    An optimizer step rounds the one to the other, so they are equal bit for bit; what is not a number equals itself.
    Partitions of ZeRO-3 that are on a disk or quantized are not compared. Each comparison stays on its device until
    `check`, so that a GPU is not waited for tensor by tensor.
    """

    def __init__(self, stage: int, rank: int) -> None:
        self._stage, self._rank = stage, rank
        self._names, self._differ = list[str](), list[Tensor]()

    def compare(self, name: str, parameter: Parameter, master: Tensor) -> None:
        """Compares `master`, whole, with the parameter, or with this rank's partition of it."""
        live, held = self._local_parts(parameter, master)
        rounded = held.detach().to(live.device, live.dtype)
        # Twice not equal is equal: what is not a number differs from itself.
        differ = (rounded != live) & ~(rounded.isnan() & live.isnan())
        self._names.append(name)
        self._differ.append(differ.any())

    def check(self, device: torch.device) -> None:
        """Raises WrongSnapshot on every rank, with names, if a tensor differed on any of them; a collective."""
        if not self._names:
            return
        differ = torch.stack([differs.to(device) for differs in self._differ]).int()
        distributed.all_reduce(differ, distributed.ReduceOp.MAX)
        wrong = [name for name, differs in zip(self._names, differ.tolist(), strict=True) if differs]
        if wrong:
            more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
            raise WrongSnapshot(
                f"{len(wrong)} of {len(self._names)} tensors are not the weights with which the model computes: "
                f"{', '.join(wrong[:NAMED])}{more}"
            )

    def _local_parts(self, parameter: Parameter, master: Tensor) -> tuple[Tensor, Tensor]:
        """The live weights of this rank, and the same elements of the master weights."""
        if self._stage < 3:
            return parameter.detach(), master
        shard: Any = parameter.ds_tensor  # type: ignore[attr-defined]  # DeepSpeed's
        if shard.final_location == "nvme" or hasattr(shard, "ds_quant_scale"):
            return master.new_empty(0), master.new_empty(0)
        start = shard.ds_numel * self._rank
        held = master.flatten()[start : start + shard.ds_numel]
        return shard.detach().flatten()[: len(held)], held
