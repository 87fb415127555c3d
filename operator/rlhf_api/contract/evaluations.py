"""Lines of `evaluation.jsonl`, each of one set after one step."""

from collections.abc import Mapping
from typing import Any


def list_means(line: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a line's means by the words that people read for them: each metric's name, or `score` where the only
    metric has none; of given responses `loss`."""
    if "mean" not in line:
        return {"loss": "loss"}
    named = {key.removesuffix("_mean"): key for key in line if key.endswith("_mean")}
    return named or {"score": "mean"}
