"""A model over packed sequences without gradients; `infer` is all that reward and reference roles need."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..batches import MicroBatch, OutputFn, plan
from ..records import Sequences, ragged_index


def forward(model: Callable[..., Any], config: Any, micro: MicroBatch) -> Tensor:
    """The logits of a Hugging Face model; `config` is the model's own, for the padding token it pools
    before.
    """
    text = config.get_text_config()
    kept, text.pad_token_id = text.pad_token_id, micro.pad_token_id
    try:
        logits: Tensor = model(
            input_ids=micro.input_ids,
            attention_mask=micro.attention_mask,
            position_ids=micro.position_ids,
            use_cache=False,
        ).logits
        return logits
    finally:
        text.pad_token_id = kept


@torch.no_grad()
def infer(
    model: torch.nn.Module,
    sequences: Sequences,
    read: OutputFn,
    sizes: Tensor,
    *,
    token_budget: int,
    pad_token_id: int,
) -> Tensor:
    """What `read` gives for every row, packed in the order of the sequences: one model on one device.

    `sizes` int64 [N]: values per row (the answer lengths, or ones) -> float32 [sum(sizes)] on the CPU.
    """
    device = next(model.parameters()).device
    (batches,) = plan(sequences.lengths.tolist(), 1, token_budget)
    return infer_batches(model, model.config, sequences, batches, read, sizes, pad_token_id, device).cpu()


@torch.no_grad()
def infer_batches(
    model: Callable[..., Any],
    config: Any,
    sequences: Sequences,
    batches: Sequence[Sequence[int]],
    read: OutputFn,
    sizes: Tensor,
    pad_token_id: int,
    device: torch.device,
) -> Tensor:
    """As `infer`, for the rows of `batches` alone; zero for all others. The result stays on `device`."""
    starts = sizes.cumsum(0) - sizes
    packed = torch.zeros(int(sizes.sum()), device=device)
    for rows in batches:
        micro = MicroBatch.build(sequences, rows, pad_token_id, device)
        index = ragged_index(starts[micro.rows], sizes[micro.rows])
        packed[index.to(device)] = read(forward(model, config, micro), micro).float()
    return packed
