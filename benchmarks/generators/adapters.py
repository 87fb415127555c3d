"""Rounds of `weights.py` in which an adapter travels alone, and is merged by the generator."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlhf_api.contract.run import Member
from rlhf_api.sections.lora import Lora
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.weights.base import Base
from rlhf_trainer.weights.broadcaster import Broadcaster


class Adapted:
    """The benchmark's model with matrices beside all of its linear layers."""

    def __init__(self, model: Any, rank: int) -> None:
        self._model, adapter = model, Adapter(model, Lora(rank=rank), 0, "a model")
        self._adapter, name = adapter, str(adapter.fingerprint["base"])
        frozen = partial(self._tensors, trained=False)
        self._base = Base(name, frozen, adapter.scale, adapter.transposed)

    def round(self, sync: Broadcaster, members: list[Member], version: int) -> dict[str, Any]:
        """Other matrices to `members`, the base before them where they lack it: figures of `BroadcastReport`."""
        generator = torch.Generator(self._model.device).manual_seed(version)
        with torch.no_grad():
            for _, matrix in self._tensors(trained=True):
                matrix.normal_(0.0, 0.02, generator=generator)
        report = sync.send(members, partial(self._tensors, trained=True), version, base=self._base)
        changed = sync.changed(members)
        assert not changed, changed
        measured = {"seconds": report.seconds, "wire": report.wire_seconds, "pause": report.pause_seconds}
        return measured | {
            "bytes": report.bytes,
            "base_bytes": report.base_bytes,
            "took": len(report.holders),
        }

    def _tensors(self, *, trained: bool) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad == trained:
                yield self._adapter.travelling(name), parameter.detach()
