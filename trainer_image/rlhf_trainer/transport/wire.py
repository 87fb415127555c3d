"""The one wire format between roles and ranks: named arrays and a JSON header, as safetensors, which may be compressed
with zstd. No pickle.

The header is one more array of bytes, `_`: safetensors' own header, which has its metadata, must stay below 100 MB.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
import zstandard
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

HEADER = "_"
"""The array that holds the header as JSON."""
LARGEST = 1 << 30
"""Maximum size after decompression, in bytes: a short message may claim to be of any size."""
_LEVEL = 1
_ZSTD = zstandard.FRAME_HEADER
"""Magic number of a compressed message. Read as safetensors, it would announce a header of 4 GB, above the format's
limit."""


class WireError(ValueError):
    """The bytes are not a message."""


def encode(
    arrays: Mapping[str, Tensor], header: Mapping[str, Any] | None = None, *, compress: bool = False
) -> bytes:
    """A message of named arrays (any shape and dtype safetensors knows) and a JSON-serialisable header.

    Tokens and text shrink to a quarter, which is worth the time on networks below 1 Gbit/s or with others on them;
    floats do not shrink. Raises ValueError for the names `_` and `__metadata__`, which the format itself uses.
    """
    if reserved := {HEADER, "__metadata__"} & set(arrays):
        raise ValueError(f"arrays cannot be named {', '.join(sorted(reserved))}: the format uses that itself")
    contiguous, storages = dict[str, Tensor](), set[int]()
    for name, array in arrays.items():
        own = array.detach().cpu().contiguous()
        if (storage := own.untyped_storage().data_ptr()) in storages:
            own = own.clone()  # safetensors refuses arrays that share memory, such as tied weights
        storages.add(storage)
        contiguous[name] = own
    contiguous[HEADER] = as_array(json.dumps(header or {}, separators=(",", ":")))
    data = save(contiguous)
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(data) if compress else data


def decode(data: bytes, largest: int = LARGEST) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Arrays and header of a message, compressed or not, of at most `largest` bytes then.

    Raises:
        WireError: `data` is truncated, corrupt or not a message.
    """
    if data.startswith(_ZSTD):
        data = _decompressed(data, largest)
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise WireError(f"not a message of named arrays ({len(data)} bytes): {error}") from error
    packed = arrays.pop(HEADER, None)
    header = json_of(packed, "the header of a message") if packed is not None else {}
    if not isinstance(header, dict):
        raise WireError(f"the header of a message is an object, not {type(header).__name__}")
    return arrays, header


def as_array(text: str) -> Tensor:
    """A text of any length as a non-empty uint8 array [bytes]."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def json_of(array: Tensor, what: str) -> Any:
    """JSON in an array made by `as_array`. Raises WireError, with the name `what`, if the array holds anything else."""
    if array.dtype != torch.uint8 or array.ndim != 1:
        raise WireError(f"{what} is JSON as uint8 [bytes], not {array.dtype} {list(array.shape)}")
    try:
        return json.loads(bytes(array.numpy()))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} is not valid JSON: {error}") from None


def _decompressed(data: bytes, largest: int) -> bytes:
    where = f"not a message of named arrays ({len(data)} bytes, compressed)"
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= largest:
            claimed = "no size" if size < 0 else f"{size} bytes"
            raise WireError(f"{where}: it claims {claimed} when decompressed; at most {largest} are accepted")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"{where}: {error}") from error
