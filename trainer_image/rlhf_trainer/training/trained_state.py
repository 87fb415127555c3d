"""Snapshot state of a graph's models and algorithm. For a model with an adapter it holds only the trained tensors, and
fits only the same base and settings."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from rlhf_api.graph import CRITIC
from rlhf_api.problems import InvalidJob, Problem

from ..checkpoint.reading import Snapshot
from ..checkpoint.segments import Group
from ..models.average import MovingAverage
from ..models.state import load_training_state, training_state
from ..models.trained_model import TrainedModel
from ..ops import OpContext

KEY = "adapters"
REMEDY = "put it back, or start anew with another spec.checkpoint.store"


class TrainedState:
    """Parameters and optimizers of the `models`, their moving `averages`, and the running state of the algorithm's
    operations."""

    def __init__(
        self,
        models: Mapping[str, TrainedModel],
        op_ctx: OpContext,
        averages: Mapping[str, MovingAverage] = MappingProxyType({}),
    ) -> None:
        self._models, self._op_ctx, self._averages = models, op_ctx, averages

    def state(self) -> dict[str, Any]:
        """JSON of the operations and the adapters, as a copy."""
        return {"algorithm": deepcopy(self._op_ctx.state), **fingerprints(self._models)}

    def groups(self) -> dict[str, Group]:
        """Tensors by model; iterating is a collective."""
        return {
            **{name: training_state(model) for name, model in self._models.items()},
            **{f"{name}_average": average.state() for name, average in self._averages.items()},
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Inverse of both. Raises InvalidJob if an adapter or its base has changed."""
        check_fingerprints(self._models, snapshot.state)
        self._op_ctx.restore(snapshot.state)
        for name, model in self._models.items():
            load_training_state(model, partial(snapshot.tensor, name))
        for name, average in self._averages.items():
            average.load(partial(snapshot.tensor, f"{name}_average"))


def fingerprints(models: Mapping[str, TrainedModel]) -> dict[str, Any]:
    """Fingerprints of the models with an adapter, by name, for a snapshot's JSON; empty without any."""
    found = {name: dict(model.adapter.fingerprint) for name, model in models.items() if model.adapter}
    return {KEY: found} if found else {}


def check_fingerprints(models: Mapping[str, TrainedModel], state: Mapping[str, Any]) -> None:
    """Raises InvalidJob if a snapshot was saved with another adapter or base, or with an adapter where there is none
    now, or the reverse.
    """
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
