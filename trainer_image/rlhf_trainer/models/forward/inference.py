"""Forward passes of a Hugging Face model over micro-batches, padded or packed."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.roles import Attention, Trainer

from ...maths.outputs import ResponseLogprobs
from ...process import progress
from ...tensors.batches import MicroBatch, OutputFn, plan
from ...tensors.packed import ragged_index, to_device
from ...tensors.records import Sequences
from .attention import PACKED
from .efficiency import fuse
from .image_places import placing
from .packing import can_pack, packing_fault
from .response_head import install, response_head
from .routers import Routers
from .sequence_parallel import SequenceGroup, check_heads, heads_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Forward:
    """Forward passes of one model over micro-batches of at most `token_budget` tokens, through `engine` (DeepSpeed's
    wrapper of the model) if given.

    A model's `ResponseHead` computes log-probabilities without the logits of prompts. The ranks of a `sequence_group`
    call it together with the same packed micro-batches, and each gets all values.
    """

    model: PreTrainedModel
    token_budget: int
    pad_token_id: int
    engine: Any = None
    packed: bool = False
    sequence_group: SequenceGroup | None = None
    routers: Routers | None = None
    """Those of the model, which replay the routing of micro-batches."""

    @classmethod
    def choose(
        cls,
        model: PreTrainedModel,
        token_budget: int,
        pad_token_id: int,
        attention: Attention,
        engine: Any = None,
        sequence_group: SequenceGroup | None = None,
    ) -> Self:
        """Packed if `attention` asks for it (`auto`: on GPUs, but in float32, where their fast kernels are of padded
        sequences) and a trial shows that packed logits equal padded ones.
        Raises InvalidJob for `packed`, or a `sequence_group`, if the model does not support it.
        """
        padded = cls(model, token_budget, pad_token_id, engine)
        if sequence_group is not None:
            check_heads(*heads_of(model), sequence_group.size)
            attention = "packed"
        is_slow = padded.device.type == "cpu" or model.dtype == torch.float32
        if attention == "padded" or (attention == "auto" and is_slow):
            return padded
        fault = "its attention reads no packed sequences"
        if can_pack(model):
            own, model.config._attn_implementation = model.config._attn_implementation, PACKED
            with torch.no_grad():
                fault = packing_fault(padded.logits, model.dtype, padded.device)
            if not fault:
                return replace(padded, packed=True, sequence_group=sequence_group)
            model.config._attn_implementation = own
        if attention == "packed":
            field, value = (
                ("attention", "packed") if sequence_group is None else ("sequenceParallelSize", "above 1")
            )
            message = (
                f"is {value}, and {type(model).__name__} in {model.dtype} cannot pack on {padded.device.type}: "
                f"{fault}; leave it out"
            )
            raise InvalidJob([Problem(f"spec.trainer.{field}", message)])
        log.info("%s in %s runs on padded sequences: %s", type(model).__name__, model.dtype, fault)
        return padded

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device if self.engine is None else self.engine.device)

    def plan(self, sequences: Sequences, ranks: int = 1, group: int = 1) -> list[list[list[int]]]:
        """The micro-batches of every rank, or of every sequence group; see `batches.plan`."""
        together = self.sequence_group.size if self.sequence_group else 1
        lengths, budget = sequences.lengths.tolist(), self.token_budget * together
        branches = None if self.packed else sequences.branch_lengths
        return plan(lengths, ranks // together, budget, group, packed=self.packed, branches=branches)

    def divided(self, sequences: Sequences) -> Sequences:
        """The sequences, those with branches that a padded micro-batch has no room for as several."""
        return sequences if self.packed else sequences.divided(self.token_budget)

    def build(self, sequences: Sequences, rows: Sequence[int]) -> MicroBatch:
        return MicroBatch.build(sequences, rows, self.pad_token_id, self.device, packed=self.packed)

    def __call__(self, micro: MicroBatch, read: OutputFn) -> Tensor:
        """The values that `read` computes from one micro-batch; a sign of progress."""
        progress.sign()
        if self.sequence_group is not None:
            return self.sequence_group.read(micro, lambda part: self._read(part, read))
        return self._read(micro, read)

    def replaying(self, micro: MicroBatch) -> AbstractContextManager[None]:
        """Has the routers replay the micro-batch's routing, if it has any; to be left after a backward pass."""
        if self.routers is None or micro.routing is None:
            return nullcontext()
        group, routing = self.sequence_group, micro.routing
        return self.routers.replaying(routing if group is None else group.slice_routing(routing))

    def _read(self, micro: MicroBatch, read: OutputFn) -> Tensor:
        head = response_head(self.model)
        if head is not None and head.fits and isinstance(read, ResponseLogprobs):
            with head.reading(read, micro):
                output = self.logits(micro)
                # A model that caps or scales its logits has applied that to log-probabilities here: never call it
                # again.
                head.fits = head.gave(output)
            if head.fits:
                return read.columns(output[0])
        return read(self.logits(micro), micro)

    def logits(self, micro: MicroBatch) -> Tensor:
        """The model's own output, [n, T, V] for a language model."""
        text = self.model.config.get_text_config()
        # A sequence-classification head pools before the padding token named by its configuration.
        own_pad_token, text.pad_token_id = text.pad_token_id, micro.pad_token_id
        options: dict[str, Any] = {"max_length_q": micro.longest} if micro.packed else {}
        if self.sequence_group is not None:
            options["sequence_group"] = self.sequence_group
        if (images := micro.images) is not None:
            options["pixel_values"] = to_device(torch.cat(images.patches), self.device)
            options["image_grid_thw"] = to_device(images.grids, self.device)
        try:
            with placing(self.model, micro.image_places):
                logits: Tensor = (self.engine or self.model)(
                    input_ids=micro.input_ids,
                    attention_mask=micro.attention_mask,
                    position_ids=micro.position_ids,
                    use_cache=False,
                    **options,
                ).logits
            return logits
        finally:
            text.pad_token_id = own_pad_token

    @torch.no_grad()
    def infer(
        self, sequences: Sequences, read: OutputFn, sizes: Tensor, batches: Sequence[Sequence[int]]
    ) -> Tensor:
        """The values that `read` computes for the rows of `batches`, packed in the order of all sequences; zero for
        other rows.

        `sizes` int64 [N]: values per row (the response lengths, or ones) -> float32 [sum(sizes), ...] on the model's
        device.
        """
        starts = sizes.cumsum(0) - sizes
        packed = torch.zeros(int(sizes.sum()), device=self.device)
        for i, rows in enumerate(batches):
            micro = self.build(sequences, rows)
            index = ragged_index(starts[micro.rows], sizes[micro.rows])
            with self.replaying(micro):
                values = self(micro, read).float()
            if i == 0:
                packed = packed.new_zeros((len(packed), *values.shape[1:]))
            packed[to_device(index, self.device)] = values
        return packed


def infer(forward: Forward, sequences: Sequences, read: OutputFn, sizes: Tensor) -> Tensor:
    """The values that `read` computes for every row, packed in the order of the sequences: one model on one device.

    `sizes` int64 [N]: values per row (the response lengths, or ones) -> float32 [sum(sizes), ...] on the CPU.
    """
    if torch.equal(sizes, sequences.response_lengths):  # values of tokens
        sequences = forward.divided(sequences)
        sizes = sequences.response_lengths
    (batches,) = forward.plan(sequences)
    return forward.infer(sequences, read, sizes, batches).cpu()


def served(
    model: PreTrainedModel,
    trainer: Trainer,
    token_budget: int,
    pad_token_id: int,
    *,
    float32_head: bool = False,
) -> Forward:
    """Forward passes of an inference-only model with the trainer's own fused kernels, attention and output layer."""
    fuse(model, trainer.kernels)
    install(model, float32=float32_head)
    return Forward.choose(model, token_budget, pad_token_id, trainer.attention)
