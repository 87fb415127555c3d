"""A digest of weights that is the same on CPU and GPU and is computed where they lie, at the speed of memory."""

import hashlib
import json
from functools import cache

import torch
from torch import Tensor

from .buckets import Bucket

CHUNK = 16 << 20  # bytes hashed at once; the temporaries are twice that
LANES = 2
STEP = 4  # words between the keys of two lanes, so that slices stay 16-byte aligned


class Digest:
    """Digest of a sequence of buckets: their bytes, and the names, dtypes and shapes of their tensors.

    The bytes of each chunk go through NH, the universal hash of UMAC (Black et al., "UMAC: Fast and Secure Message
    Authentication", CRYPTO 1999, section 4), with two lanes of 64 bits and fixed keys; SHA-256 joins the table of
    tensors and the lanes in order. Any accidental change is missed with probability about 2^-64. The keys are
    public, so it proves integrity, not authenticity: it does not withstand someone who chooses the weights to
    collide. Where the buckets are cut matters: both sides must use the same buckets.
    """

    def __init__(self) -> None:
        self._table = hashlib.sha256()
        self._lanes: list[Tensor] = []

    def update(self, bucket: Bucket) -> None:
        """Takes in a bucket; its bytes may be overwritten afterwards (on a GPU: in stream order)."""
        self._table.update(json.dumps([spec.json() for spec in bucket.specs]).encode() + b"\n")
        self._lanes.append(lanes(bucket.data.view(torch.int32)))

    def hexdigest(self) -> str:
        """64 hexadecimal digits. Waits for the device."""
        lane_values = torch.cat(self._lanes).cpu() if self._lanes else torch.empty(0, dtype=torch.int64)
        return hashlib.sha256(self._table.digest() + lane_values.numpy().tobytes()).hexdigest()


def lanes(words: Tensor) -> Tensor:
    """NH of each chunk of `words`, int32 [2n], on their device: int64 [chunks, LANES]."""
    if words.device.type == "cuda":
        from .kernels import nh  # torch's CUDA build brings Triton

        return nh(words, _keys(words.device), CHUNK // 4, STEP)
    return torch.stack([_nh(chunk) for chunk in words.split(CHUNK // 4)])


def _nh(words: Tensor) -> Tensor:
    """Sum over i of (a[i] + ka[i]) * (b[i] + kb[i]) mod 2^64 with a, b the halves of `words` (int32 [2n], sums mod
    2^32) and other keys k for each lane: int64 [LANES]."""
    half = len(words) // 2
    a, b = words[:half], words[half:]
    key_a, key_b = _keys(words.device)
    sums = []
    for start in range(0, LANES * STEP, STEP):
        left = (a + key_a[start : start + half]).to(torch.int64)
        sums.append(left.mul_(b + key_b[start : start + half]).sum())
    return torch.stack(sums)


@cache
def _keys(device: torch.device) -> tuple[Tensor, Tensor]:
    """Two rows of pseudo-random int32, the same everywhere."""
    row = CHUNK // 8 + (LANES - 1) * STEP
    raw = bytearray(hashlib.shake_256(b"rlhf weights digest 1").digest(2 * row * 4))
    first, second = torch.frombuffer(raw, dtype=torch.int32).view(2, row).to(device)
    return first, second
