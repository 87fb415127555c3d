"""The column of an episode's table with the experts that routers chose: per response those of all tokens, end to end,
int16; what their shape is, the table's metadata say."""

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..tensors.expert_rows import UNKNOWN
from ..tensors.records import Sequences

FIELD = pa.field("experts", pa.large_list(pa.field("element", pa.int16(), nullable=False)), nullable=False)
SHAPE = b"rlhf_experts"
"""Key of the metadata: layers and experts of a token, such as `48,8`."""


def encode_routing(routing: Tensor, sequences: Sequences) -> tuple[pa.LargeListArray, dict[bytes, bytes]]:
    """The column of `routing` [sum(lengths), L, K], and metadata."""
    _, layers, chosen = routing.shape
    offsets = torch.nn.functional.pad((sequences.lengths * layers * chosen).cumsum(0), (1, 0))
    values = pa.array(routing.flatten().numpy())
    column = pa.LargeListArray.from_arrays(pa.array(offsets.numpy()), values, type=FIELD.type)
    return column, {SHAPE: b"%d,%d" % (layers, chosen)}


def decode_routing(column: pa.LargeListArray, metadata: dict[bytes, bytes], lengths: Tensor) -> Tensor:
    """Inverse of `encode_routing`, for sequences of these lengths. Raises ValueError where the parts do not match."""
    layers, _, chosen = metadata.get(SHAPE, b"").partition(b",")
    if not (layers.isdigit() and chosen.isdigit() and int(layers) and int(chosen)):
        raise ValueError(
            "a table with experts says how many a token has in how many layers; this one does not"
        )
    width = int(layers) * int(chosen)
    sizes = torch.from_numpy(np.diff(column.offsets.to_numpy()).astype(np.int64))
    values = torch.from_numpy(column.flatten().to_numpy(zero_copy_only=False).copy())
    if not torch.equal(sizes, lengths * width) or bool((values < UNKNOWN).any()):
        raise ValueError(f"each token has {width} experts; this table's have not")
    return values.view(-1, int(layers), int(chosen))
