"""The one wire format between roles and ranks: named arrays and a JSON header, as safetensors, which may be compressed
with zstd. No pickle."""

import json
from collections.abc import Mapping
from typing import Any

import torch
import zstandard
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

LARGEST = 1 << 30
"""Bytes that a compressed message may have when it is none any more: a short one may claim to be of any size."""
_LEVEL = 1
_ZSTD = zstandard.FRAME_HEADER
"""How a compressed message begins. As the beginning of safetensors it would announce a header of 4 GB, which those
cannot have."""


class WireError(ValueError):
    """Bytes that are no message."""


def encode(
    arrays: Mapping[str, Tensor], header: Mapping[str, Any] | None = None, *, compress: bool = False
) -> bytes:
    """A message of named arrays (any shape and dtype safetensors knows) and a JSON-serialisable header.

    Tokens and text shrink to a quarter, which is worth the time on networks below 1 Gbit/s or with others on them;
    floats do not shrink. Raises ValueError for the names `_` and `__metadata__`, which the format itself uses.
    """
    if reserved := {"_", "__metadata__"} & set(arrays):
        raise ValueError(f"arrays cannot be named {', '.join(sorted(reserved))}: the format uses that itself")
    # Copies: safetensors refuses arrays that share memory, as two names of one tensor do.
    contiguous = {
        name: array.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, array in arrays.items()
    }
    # safetensors keeps string metadata outside any array's limits; an empty message still needs one array.
    contiguous.setdefault("_", torch.zeros(0, dtype=torch.uint8))
    data = save(contiguous, metadata={"header": json.dumps(header or {}, separators=(",", ":"))})
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(data) if compress else data


def decode(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays and the header of a message, compressed or not.

    Raises:
        WireError: `data` is truncated, corrupt or something else altogether.
    """
    if data.startswith(_ZSTD):
        data = _decompressed(data)
    try:
        arrays = load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size]).get("__metadata__", {}).get("header", "{}"))
    # RuntimeError: sizes no tensor can have, and (RecursionError) JSON nested too deep.
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise WireError(f"not a message of named arrays ({len(data)} bytes): {error}") from error
    arrays.pop("_", None)
    if not isinstance(header, dict):
        raise WireError(f"the header of a message is an object, not {type(header).__name__}")
    return arrays, header


def _decompressed(data: bytes) -> bytes:
    where = f"not a message of named arrays ({len(data)} bytes, compressed)"
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= LARGEST:
            claimed = "no size" if size < 0 else f"{size} bytes"
            raise WireError(
                f"{where}: it claims {claimed} when it is decompressed; at most {LARGEST} are taken"
            )
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"{where}: {error}") from error
