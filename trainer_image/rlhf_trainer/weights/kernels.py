"""The digest's arithmetic as one pass over a GPU's memory; `digest.py` says what it computes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
SPLITS = 64  # programs for each chunk, so that a small bucket keeps all of a GPU busy too


def nh(words: Tensor, keys: tuple[Tensor, Tensor], chunk: int, step: int) -> Tensor:
    """Two lanes of each chunk of `chunk` int32 words: int64 [chunks, 2]."""
    chunks = triton.cdiv(len(words), chunk)
    partial = torch.empty((chunks, SPLITS, 2), dtype=torch.int64, device=words.device)
    _nh[(chunks, SPLITS)](
        words, *keys, partial, len(words), CHUNK=chunk, STEP=step, SPLITS=SPLITS, BLOCK=BLOCK
    )
    return partial.sum(1)


@triton.jit  # type: ignore[untyped-decorator]
def _nh(  # type: ignore[no-untyped-def]  # Triton's language, not Python
    words,
    keys_a,
    keys_b,
    partial,
    total,
    CHUNK: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk, split = tl.program_id(0), tl.program_id(1)
    begin = chunk.to(tl.int64) * CHUNK
    half = (tl.minimum(total - begin, CHUNK) // 2).to(tl.int32)
    first = tl.zeros([BLOCK], tl.int64)
    second = tl.zeros([BLOCK], tl.int64)
    for start in range(split * BLOCK, half, SPLITS * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < half  # where not, all are 0 and so is their product
        a = tl.load(words + begin + at, mask=inside, other=0)
        b = tl.load(words + begin + half + at, mask=inside, other=0)
        a0 = tl.load(keys_a + at, mask=inside, other=0)
        b0 = tl.load(keys_b + at, mask=inside, other=0)
        a1 = tl.load(keys_a + STEP + at, mask=inside, other=0)
        b1 = tl.load(keys_b + STEP + at, mask=inside, other=0)
        first += (a + a0).to(tl.int64) * (b + b0).to(tl.int64)
        second += (a + a1).to(tl.int64) * (b + b1).to(tl.int64)
    out = partial + (chunk * SPLITS + split) * 2
    tl.store(out, tl.sum(first, 0))
    tl.store(out + 1, tl.sum(second, 0))
