"""The seed of an episode, which its row alone decides: all of a group are one task, and a replay goes as before."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rlhf_api.errors.problem import show

_LARGEST = 2**31 - 1
"""What every collection takes."""


def seed_of(row: Mapping[str, Any]) -> int:
    """The row's column `seed`; of a row without one, a number that all its columns decide. Raises ValueError for a
    `seed` that is none."""
    seed = row.get("seed")
    if seed is None:
        text = json.dumps(row, sort_keys=True, default=str)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) & _LARGEST
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST:
        message = f"the column seed must be a whole number from 0 to {_LARGEST}; got {show(seed)}"
        raise ValueError(message)
    return seed
