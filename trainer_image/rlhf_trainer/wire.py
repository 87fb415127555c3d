"""The one wire format between roles and ranks: named arrays and a JSON header, as safetensors. No pickle."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


class WireError(ValueError):
    """Bytes that are no message."""


def encode(arrays: Mapping[str, Tensor], header: Mapping[str, Any] | None = None) -> bytes:
    """A message of named arrays (any shape and dtype safetensors knows) and a JSON-serialisable header.

    Raises ValueError for the names `_` and `__metadata__`, which the format itself uses.
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
    return save(contiguous, metadata={"header": json.dumps(header or {}, separators=(",", ":"))})


def decode(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arrays and the header of a message.

    Raises:
        WireError: `data` is truncated, corrupt or something else altogether.
    """
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
