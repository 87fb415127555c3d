"""The known key that is most similar to one that is not."""

import difflib
from collections.abc import Sequence


def plain(key: str) -> str:
    """A key in lower case without `_` and `-`, in which spellings differ."""
    return key.replace("_", "").replace("-", "").lower()


def closest(key: str, keys: Sequence[str], similarity: float = 0.6) -> str:
    """The key of `keys` that is most similar to `key`; empty if none is. `similarity`: 1 for all but the spelling."""
    by_plain = {plain(k): k for k in keys}
    close = difflib.get_close_matches(plain(key), by_plain, n=1, cutoff=similarity)
    return by_plain[close[0]] if close else ""


def suggestion(key: str, keys: Sequence[str], similarity: float = 0.6) -> str:
    """A sentence with the key of `keys` that is most similar to `key`."""
    if close := closest(key, keys, similarity):
        return f'did you mean "{close}"?'
    return "known here: " + ", ".join(sorted(keys)) if keys else "remove it"
