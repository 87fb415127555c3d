"""Load of the experts in one update: the loss that evens it out, and statistics, over all micro-batches and ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed
from transformers import PreTrainedModel

from rlhf_api.errors.problem import InvalidJob, Problem

from ..maths.routing import balance_loss, count_replaced, expert_loads, load_statistics
from ..tensors.batches import MicroBatch
from .forward.routers import Routers, Routing
from .forward.sequence_parallel import SequenceGroup


def check_balanced(model: PreTrainedModel, routers: Routers | None) -> None:
    """Raises InvalidJob for a model whose routers were not trained by the probabilities of experts: a dense one, or one
    that evens out their load by a bias."""
    config = model.config.get_text_config()
    if routers is not None and hasattr(config, "router_aux_loss_coef"):
        return
    kind = type(model).__name__
    message = f"needs routers with a balance loss, router_aux_loss_coef in config.json, which {kind} has not"
    raise InvalidJob([Problem("spec.experts.balanceCoefficient", f"{message}; leave it out")])


class ExpertBalance:
    """Adds up what the routers chose; `tokens`: those of all sequences of the update.

    With a `coefficient` a micro-batch has a loss, this rank's part of the mean over the update's tokens and the layers.
    With a sequence group each rank adds the tokens of its own slice, and the loads of sequences are the group's.
    """

    def __init__(self, coefficient: float, tokens: int, group: SequenceGroup | None) -> None:
        self._coefficient, self._tokens, self._group = coefficient, tokens, group
        self._loads: Tensor | None = None
        self._replaced: Tensor | None = None

    def add(self, routings: Sequence[Routing], micro: MicroBatch, lengths: Tensor) -> Tensor | None:
        """The mean balance loss of this rank's tokens, before the coefficient; None without one. `lengths` int64 [n]:
        tokens of each of the micro-batch's sequences."""
        owners = micro.owners if self._group is None else self._group.slice_owners(micro)
        count = len(micro.rows)
        loads = torch.stack(
            [expert_loads(each.chosen, owners, count, each.logits.shape[1]) for each in routings]
        )
        counts = [count_replaced(r.own, r.replayed) for r in routings if r.replayed is not None]
        if counts:
            replaced = torch.stack(counts).sum(0)
            self._replaced = replaced if self._replaced is None else self._replaced + replaced
        own = loads.sum(1).double()
        self._loads = own if self._loads is None else self._loads + own
        if not self._coefficient:
            return None
        if self._group is not None:
            distributed.all_reduce(loads, group=self._group.group)
        losses = [
            balance_loss(each.logits, load, owners, lengths)
            for each, load in zip(routings, loads, strict=True)
        ]
        return torch.stack(losses).sum() / (len(routings) * self._tokens)

    def statistics(self) -> dict[str, float]:
        """`load_statistics` of all ranks, and where choices are replayed the share of tokens, in all layers, of which
        the router's own would be others; a collective."""
        assert self._loads is not None, "an update has micro-batches"
        distributed.all_reduce(self._loads)
        statistics = load_statistics(self._loads.cpu())
        if self._replaced is None:
            return statistics
        distributed.all_reduce(self._replaced)
        differ, known = self._replaced.tolist()
        return statistics | {"experts_replaced_share": differ / max(known, 1.0)}
