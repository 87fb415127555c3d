"""A Hugging Face model under DeepSpeed: inference on packed sequences, and optimizer steps."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.nn import Module
from torch.nn.utils import get_total_norm
from transformers import GenerationConfig, PreTrainedModel

from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer

from ..process import progress
from ..tensors.batches import MAXIMUM, Loss, MicroBatch, OutputFn
from ..tensors.packed import ragged_index, to_device
from ..tensors.records import Sequences
from .balance import ExpertBalance, check_balanced
from .deepspeed_config import deepspeed_settings
from .forward.efficiency import fuse, recompute
from .forward.inference import Forward
from .forward.response_head import install
from .forward.routers import Routers, Routing
from .forward.sequence_parallel import SequenceGroup
from .frozen import frozen_digest
from .gathering import Named, gather_whole, undivided
from .initialize import initialize
from .muon import FACTOR
from .pretrained.vision import vision_part

if TYPE_CHECKING:
    from .adapter import Adapter

LEAST_RATE, LEAST_NORM = 1e-9, 1e-5
"""Learning rate and gradient norm from which on an update changes some float32 weight and both moments."""


class TrainedModel:
    """One trained model, spread over all ranks of the default process group, which the caller has initialised.

    Every method is a collective: all ranks call it with the same arguments. The model stays in evaluation mode: an
    update's forward pass is that of `infer`, without dropout (a policy's first importance ratio is 1), layer drop or
    router noise, however its class names them. `deepspeed` is the user's own DeepSpeed configuration. AdamW from torch
    unless that names Adam or AdamW of DeepSpeed's, with Muon for matrices if `optimizer` says so; biases and norms are
    not decayed. With an `adapter`, only the
    adapter is trained, and the head of a reward model or critic. With `sequence_parallel_size` n, each n neighbouring
    ranks share micro-batches, which may be n times as large. Raises InvalidJob for settings that this model or
    machine cannot have.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: Optimizer,
        trainer: Trainer,
        *,
        deepspeed: Mapping[str, Any],
        micro_batch_tokens: int,
        pad_token_id: int,
        adapter: "Adapter | None" = None,
        balance: float = 0.0,
        float32_head: bool = False,
        replays: bool = True,
    ) -> None:
        """`deepspeed` and `micro_batch_tokens` are this model's; `trainer` holds what all models share. `balance`: the
        coefficient of the loss that evens out the load of a mixture's experts. `float32_head`: a language model's
        logits are computed in float32. `replays`: the routing of sequences is of this model's routers."""
        adam = {
            "lr": optimizer.learning_rate,
            "betas": optimizer.betas,
            "eps": optimizer.epsilon,
            "weight_decay": optimizer.weight_decay,
        }
        settings = deepspeed_settings(deepspeed, adam, optimizer.gradient_clip)
        self.world_size = distributed.get_world_size()
        self.rank = distributed.get_rank()
        self.micro_batch_tokens = micro_batch_tokens
        self.adapter = adapter
        frozen = adapter is None and not all(p.requires_grad for p in model.parameters())
        self.frozen = frozen_digest(model) if frozen else None
        """Digest of the frozen weights; None without any, and for those of an adapter, which has its own."""
        vision = vision_part(model)
        self._vision = [p for p in vision.parameters() if p.requires_grad] if vision is not None else []
        fuse(model, trainer.kernels)
        recompute(model, trainer.gradient_checkpointing)
        install(model, float32=float32_head)
        self.routers, self._balance = Routers.of(model), balance
        """Those of a mixture."""
        if balance:
            check_balanced(model, self.routers)
        self.deepspeed = initialize(model.eval(), settings, adam, optimizer)
        self._together = trainer.sequence_parallel_size
        self._group = SequenceGroup.of(self._together) if self._together > 1 else None
        forward = Forward.choose(
            model, micro_batch_tokens, pad_token_id, trainer.attention, self.deepspeed, self._group
        )
        self._forward = replace(forward, routers=self.routers if replays else None)
        self.stage = int(self.deepspeed.zero_optimization_stage())
        self.moving_updates = 0
        """Updates so far, in this process, that changed weights and moments; 0 where these are not float32, as a small
        step may be lost in rounding then."""
        low = ("bf16_master_weights_and_grads", "fp16_master_weights_and_grads")
        self._keeps_float32 = not any(settings.get(key[:4], {}).get(key) for key in low)

    @property
    def unwrapped(self) -> Module:
        """The Hugging Face model; its weights are whole on every rank except under ZeRO-3 (see `gathered`)."""
        module: Module = self.deepspeed.module
        return module

    @property
    def generation_config(self) -> GenerationConfig | None:
        """The model repository's own generation configuration; None for a model that generates nothing."""
        config: GenerationConfig | None = getattr(self.unwrapped, "generation_config", None)
        return config

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model has embeddings for."""
        model: Any = self.unwrapped
        size: int = model.config.get_text_config().vocab_size
        return size

    @property
    def device(self) -> torch.device:
        return torch.device(self.deepspeed.device)

    def infer(self, sequences: Sequences, read: OutputFn, sizes: Tensor) -> Tensor:
        """The values that `read` computes for every row, packed in the order of the sequences.

        `sizes` int64 [N]: values per row (the response lengths, or ones) -> float32 [sum(sizes)] on the CPU of every
        rank. Without gradients.
        """
        sequences = self._to_read(sequences)
        if torch.equal(sizes, sequences.response_lengths):  # values of tokens
            sequences = self._forward.divided(sequences)
            sizes = sequences.response_lengths
        batches = self._forward.plan(sequences, self.world_size)[self.rank // self._together]
        packed = self._forward.infer(sequences, read, sizes, batches)
        if self.rank % self._together:
            packed.zero_()  # the group's first rank has the same values
        distributed.all_reduce(packed)
        return packed.cpu()

    def divided(self, sequences: Sequences) -> Sequences:
        """As `Forward.divided`, for a loss each of whose tokens counts alone: not where experts are balanced, which is
        of whole sequences."""
        return sequences if self._balance else self._forward.divided(sequences)

    def infer_routed(self, sequences: Sequences, read: OutputFn, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """As `infer`, and the experts that a mixture's routers chose: int16 [sum(lengths), L, K] on the CPU, as
        `Sequences.routing`. Without sequence parallelism."""
        assert self.routers is not None
        sequences = self._forward.divided(replace(sequences, routing=None))
        sizes = sequences.response_lengths
        packed, routing = torch.zeros(0, device=self.device), torch.zeros(0, dtype=torch.int16)
        for rows in self._forward.plan(sequences, self.world_size)[self.rank]:
            with self.routers.recording() as routings:
                values = self._forward.infer(sequences, read, sizes, [rows])
            packed = packed + values if len(packed) else values
            micro = self._forward.build(sequences, rows)
            chosen = torch.stack([each.chosen for each in routings], dim=1)[micro.owners < len(rows)]
            if not len(routing):
                routing = torch.zeros((len(sequences.tokens), *chosen.shape[1:]), dtype=torch.int16)
            index = ragged_index(sequences.starts[micro.rows], sequences.lengths[micro.rows])
            routing[index] = chosen.to("cpu", torch.int16)
        distributed.all_reduce(packed)
        # Each token is of one rank, the others have zeros, and no backend adds numbers of 16 bits.
        whole = routing.to(self.device).view(torch.uint8)
        distributed.all_reduce(whole)
        return packed.cpu(), whole.view(torch.int16).cpu()

    def update(
        self, sequences: Sequences, read: OutputFn, loss: Loss, learning_rate: float, group: int = 1
    ) -> dict[str, float]:
        """One optimizer step on all sequences.

        `loss(output, micro)` gives a scalar and named scalars, weighted so that their sums over all
        micro-batches of all ranks are the loss and the statistics; it is called with empty output for empty
        micro-batches and names the same statistics each time. The gradient is the plain sum. Returns the
        summed statistics with `loss` and `grad_norm` (2-norm of the whole gradient before clipping). In float16
        also `loss_scale`, and `overflow`: 1 where the gradient was not finite, which skips the step (Micikevicius
        et al. 2018, "Mixed precision training"); the norm is 0 then. Of a mixture also `load_statistics`, and with a
        coefficient `balance_loss`, which `loss` has with its coefficient.
        """
        if not len(sequences):
            raise ValueError("an update needs at least one sequence; got none")
        sequences = self._to_read(sequences)
        engine = self.deepspeed
        for parameters in engine.optimizer.param_groups:
            parameters["lr"] = learning_rate * parameters.get(FACTOR, 1.0)
        totals: dict[str, Tensor] = {}
        balance = self.routers and ExpertBalance(self._balance, len(sequences.tokens), self._group)
        batches = self._forward.plan(sequences, self.world_size, group)[self.rank // self._together]
        for i, rows in enumerate(batches):
            # The number of micro-batches varies from update to update, which a fixed
            # gradient_accumulation_steps cannot express, so the boundary is set by hand.
            # `managed_gradient_accumulation: false` would do too, but it forbids overlap_comm with ZeRO-1 and
            # reduces the gradient of stage 0 in step() only, where its norm cannot be read before clipping.
            engine.set_gradient_accumulation_boundary(i == len(batches) - 1)
            micro = self._forward.build(sequences, rows)
            with self._forward.replaying(micro):
                with self._recording() as routings:
                    output = self._forward(micro, read)
                value, statistics = loss(output, micro)
                self._add(totals, value, statistics)
                if balance:
                    value = value + self._add_balance(totals, balance, routings, micro, sequences.lengths)
                # DeepSpeed averages over the ranks; we want the sum. `output.sum() * 0` keeps an empty
                # micro-batch, or a loss that ignores its output, connected to every weight that the other ranks
                # reduce.
                idle = output.sum() * 0
                if micro.images is None:  # which the part that reads them has not seen
                    idle = sum((parameter.sum() * 0 for parameter in self._vision), idle)
                engine.backward((value + idle) * self.world_size, scale_wrt_gas=False)
        self._sum_whole_gradient()
        norm, scale = self._gradient_norm_before_step(), getattr(engine.optimizer, "cur_scale", 1.0)
        engine.step()
        metrics = self._summed(totals) | (balance.statistics() if balance else {})
        norm = engine.get_global_grad_norm() if norm is None else norm
        if self._keeps_float32 and learning_rate >= LEAST_RATE and LEAST_NORM <= norm < inf:
            self.moving_updates += not getattr(engine.optimizer, "overflow", False)
        if not engine.fp16_enabled():
            return metrics | {"grad_norm": float(norm)}
        skipped = bool(engine.optimizer.overflow)
        norms = {"grad_norm": 0.0 if skipped else float(norm), "overflow": float(skipped)}
        return metrics | norms | {"loss_scale": float(scale)}

    @torch.no_grad()
    def measure(self, sequences: Sequences, read: OutputFn, loss: Loss, group: int = 1) -> dict[str, float]:
        """`loss` and statistics as in `update`, without a gradient or a step."""
        totals, sequences = dict[str, Tensor](), self._to_read(sequences)
        for rows in self._forward.plan(sequences, self.world_size, group)[self.rank // self._together]:
            micro = self._forward.build(sequences, rows)
            with self._forward.replaying(micro):
                self._add(totals, *loss(self._forward(micro, read), micro))
        return self._summed(totals)

    def _add(self, totals: dict[str, Tensor], loss: Tensor, statistics: Mapping[str, Tensor]) -> None:
        """Adds a micro-batch's loss and statistics to this rank's sums and maxima."""
        for name, scalar in {"loss": loss, **statistics}.items():
            number = scalar.detach().to(self.device, torch.float64)
            if name in totals:
                before = totals[name]
                number = torch.maximum(before, number) if name.endswith(MAXIMUM) else before + number
            totals[name] = number

    def _to_read(self, sequences: Sequences) -> Sequences:
        """Sequences without the routing of another model."""
        return sequences if self._forward.routers is not None else replace(sequences, routing=None)

    def _recording(self) -> AbstractContextManager[list[Routing]]:
        return self.routers.recording() if self.routers else nullcontext([])

    def _add_balance(
        self,
        totals: dict[str, Tensor],
        balance: ExpertBalance,
        routings: Sequence[Routing],
        micro: MicroBatch,
        lengths: Tensor,
    ) -> Tensor | float:
        """Adds a micro-batch to the balance and its loss to the sums; returns the loss with its coefficient. The ranks
        of a group have a part of it each, which `_summed` takes for the same value on all."""
        value = balance.add(routings, micro, to_device(lengths[micro.rows], micro.input_ids.device))
        if value is None:
            return 0.0
        whole, weighted = value.detach() * self._together, self._balance * value
        self._add(totals, self._balance * whole, {"balance_loss": whole})
        return weighted

    def _summed(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """All-reduced sums and maxima."""
        names = sorted(totals, key=lambda name: name.endswith(MAXIMUM))
        sums = sum(not name.endswith(MAXIMUM) for name in names)
        reduced = torch.stack([totals[name] for name in names])
        reduced[:sums] /= self._together
        distributed.all_reduce(reduced[:sums])
        if sums < len(names):
            distributed.all_reduce(reduced[sums:], distributed.ReduceOp.MAX)
        return dict(zip(names, reduced.tolist(), strict=True))

    def named_tensors(self) -> Named:
        """The whole weights in the compute dtype, under their state-dict names, tied weights once, in a fixed
        order; an adapter is merged into the weights that it changes.

        All ranks iterate in lockstep; under ZeRO-3 rank 0 alone gets the tensors. One is valid until the next one is
        asked for: copy what you keep.
        """
        if self.adapter is None:
            return self._gather(self.state_items())
        return self.adapter.merged(self._gather(self.adapter.to_merge(self.state_items())))

    def trained_tensors(self) -> Named:
        """As `named_tensors`, but only the trained tensors, unmerged."""
        items = ((name, tensor) for name, tensor in self.state_items() if tensor.requires_grad)
        return self._gather(items)

    def untrained_tensors(self) -> Named:
        """As `named_tensors`, but only what no update changes: buffers, and weights without a gradient."""
        return self._gather((name, tensor) for name, tensor in self.state_items() if not tensor.requires_grad)

    def base_tensors(self) -> Named:
        """As `untrained_tensors`; those below an adapter under their names in the merged model."""
        return self._travelling(self.untrained_tensors())

    def version_tensors(self) -> Named:
        """As `trained_tensors`; those of an adapter are named by `Adapter.travelling`."""
        return self._travelling(self.trained_tensors())

    def _travelling(self, tensors: Named) -> Named:
        return tensors if self.adapter is None else ((self.adapter.travelling(n), t) for n, t in tensors)

    def adapter_off(self) -> AbstractContextManager[None]:
        """Disables the adapter: the model computes as at the start of the run."""
        assert self.adapter is not None, "a graph has such nodes for models with an adapter"
        return self.adapter.off()

    def state_items(self) -> Named:
        """State-dict names with the live parameters and buffers, tied ones once under the first name."""
        return state_items(self.unwrapped)

    def gathered(self) -> AbstractContextManager[Module]:
        """The model with whole weights on every rank and without DeepSpeed's hooks, for generation."""
        return nullcontext(self.unwrapped) if self.stage < 3 else undivided(self.deepspeed)

    def _sum_whole_gradient(self) -> None:
        """Sums the float32 gradient of stage 1 in bfloat16 over the ranks, `reduce_bucket_size` elements at a time, in
        the type in which DeepSpeed's configuration sends gradients. At other settings DeepSpeed did in `backward`.
        """
        engine = self.deepspeed
        if engine.enable_backward_allreduce or self.world_size == 1:
            return
        for flat in engine.optimizer.get_grads_for_reduction()[0]:
            for part in flat.split(engine.zero_reduce_bucket_size()):
                sent = part.to(engine.communication_data_type)
                distributed.all_reduce(sent)
                part.copy_(sent).div_(self.world_size)

    def _gradient_norm_before_step(self) -> float | None:
        """Gradient norm without ZeRO, where nothing else computes it; ZeRO optimizers do so in step()."""
        if self.stage:
            return None
        gradients = [p.grad for p in self.unwrapped.parameters() if p.grad is not None]
        return float(get_total_norm(gradients))

    def _gather(self, items: Named) -> Named:
        if self.stage == 3:
            return gather_whole(items, self.device)
        return ((name, tensor.detach()) for name, tensor in progress.each(items))


def state_items(model: Module) -> Named:
    """State-dict names with the live parameters and buffers, tied ones once under the first name."""
    ids: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in ids:
            ids.add(id(tensor))
            yield name, tensor
