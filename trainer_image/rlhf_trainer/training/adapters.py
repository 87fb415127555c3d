"""Adapters in a snapshot: it holds what is trained alone, and fits one base and the same settings."""

from collections.abc import Mapping
from typing import Any, cast

from rlhf_api.graph import CRITIC
from rlhf_api.problems import InvalidJob, Problem

from ..models.trained_model import TrainedModel

KEY = "adapters"
REMEDY = "put it back, or start anew with another spec.checkpoint.store"


def fingerprints(models: Mapping[str, TrainedModel]) -> dict[str, Any]:
    """Part of a snapshot's JSON: those of the models with an adapter, by name; empty where there are none."""
    found = {name: dict(model.adapter.fingerprint) for name, model in models.items() if model.adapter}
    return {KEY: found} if found else {}


def check_fingerprints(models: Mapping[str, TrainedModel], state: Mapping[str, Any]) -> None:
    """Raises InvalidJob where a snapshot was saved with another adapter, with another base, or with one or none."""
    saved, now = (cast(Mapping[str, Any], found.get(KEY, {})) for found in (state, fingerprints(models)))
    problems = []
    for name in models:
        where = f"spec.model.lora.{'critic' if name == CRITIC.name else 'policy'}"
        before, after = saved.get(name), now.get(name)
        if before == after:
            continue
        if before is None or after is None:
            seen = (
                "without an adapter, and the job has one"
                if after
                else "with an adapter, and the job has none"
            )
            problems.append(Problem(where, f"the checkpoint was saved {seen}; {REMEDY}"))
        elif before["base"] != after["base"]:
            message = "the checkpoint holds the adapter alone, and the weights that it was trained on are others now"
            problems.append(Problem(where, f"{message}; {REMEDY}"))
        else:
            changed = [key for key in after if before[key] != after[key]]
            seen = ", ".join(f"{key} was {before[key]} and is {after[key]}" for key in changed)
            problems.append(Problem(where, f"cannot change with the checkpoint: {seen}; {REMEDY}"))
    if problems:
        raise InvalidJob(problems)
