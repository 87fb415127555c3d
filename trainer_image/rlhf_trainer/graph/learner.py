"""A graph with its trained models and its running state, and what a snapshot holds of them. Of a model with an adapter
that is the trained tensors alone, which fit only the same base and settings."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import Graph, Model

from ..checkpoint.reading import MissingTensor, Snapshot
from ..checkpoint.segments import Group
from ..models.average import MovingAverage
from ..models.state import load_training_state, training_state
from ..models.trained_model import TrainedModel
from ..ops import OpContext

Models = Mapping[Model, TrainedModel]
"""Trained models by their entries in the graph."""
KEY, FROZEN = "adapters", "frozen"
REMEDY = "put it back, or start anew with another spec.checkpoint.store"


@dataclass(frozen=True)
class Learner:
    """An algorithm's graph, the models that it trains, their moving averages, and what its operations are called with,
    which includes their running state."""

    graph: Graph
    models: Models
    op_ctx: OpContext
    averages: Mapping[Model, MovingAverage] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """State of the operations, fingerprints of the adapters and digests of frozen weights, as a JSON copy."""
        frozen = {used.name: model.frozen for used, model in self.models.items() if model.frozen}
        digests = {FROZEN: frozen} if frozen else {}
        return {"algorithm": deepcopy(self.op_ctx.state), **fingerprints(self.models), **digests}

    def follow(self) -> None:
        """Updates the moving averages with the models' present weights, once a training step."""
        for average in self.averages.values():
            average.update()

    def groups(self) -> dict[str, Group]:
        """Tensors by model; iterating is a collective."""
        return {
            **{used.name: training_state(model) for used, model in self.models.items()},
            **{f"{used.name}_average": average.state() for used, average in self.averages.items()},
        }

    def updates(self) -> dict[str, int]:
        """Updates of each model that changed its weights and moments, by the name of its group."""
        return {used.name: model.moving_updates for used, model in self.models.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Restores `state` and `groups`; a moving average that the snapshot lacks begins with the model's weights.
        Raises InvalidJob if a model, an adapter, its base or frozen weights have changed."""
        _check_fingerprints(self.models, snapshot.state)
        _check_frozen(self.models, snapshot.state)
        self.op_ctx.restore(snapshot.state)
        for used, model in self.models.items():
            try:
                load_training_state(model, partial(snapshot.tensor, used.name))
            except (MissingTensor, ValueError) as error:
                # Of what the snapshot says that it holds: on every rank.
                message = (
                    f"the checkpoint belongs to another model or optimizer: {error}; keep spec.algorithm, spec.model "
                    "and spec.optimizer.matrices"
                )
                raise InvalidJob([Problem(f"spec.model.{used.field}", message)]) from error
        for used, average in self.averages.items():
            if (group := f"{used.name}_average") in snapshot.groups:
                average.load(partial(snapshot.tensor, group))
            else:
                average.begin()


def fingerprints(models: Models) -> dict[str, Any]:
    """Fingerprints of the models with an adapter, by name, for a snapshot's JSON; empty without any."""
    by_name = {used.name: dict(model.adapter.fingerprint) for used, model in models.items() if model.adapter}
    return {KEY: by_name} if by_name else {}


def _check_frozen(models: Models, state: Mapping[str, Any]) -> None:
    """Raises InvalidJob if a snapshot was saved with other frozen weights, or where others are frozen."""
    saved = cast(Mapping[str, str], state.get(FROZEN, {}))
    message = (
        "the checkpoint was saved with other frozen weights, or spec.model.freeze or trainVision was another; "
        f"{REMEDY}"
    )
    changed = [used for used, model in models.items() if saved.get(used.name) != model.frozen]
    if changed:
        raise InvalidJob([Problem(f"spec.model.{used.field}", message) for used in changed])


def _check_fingerprints(models: Models, state: Mapping[str, Any]) -> None:
    """Raises InvalidJob if a snapshot was saved with another adapter or base, or with an adapter where there is none
    now, or the reverse.
    """
    saved, now = (cast(Mapping[str, Any], source.get(KEY, {})) for source in (state, fingerprints(models)))
    problems = []
    for used in models:
        where = f"spec.model.lora.{used.field}"
        before, after = saved.get(used.name), now.get(used.name)
        if before == after:
            continue
        if before is None or after is None:
            difference = (
                "without an adapter, and the job has one"
                if after
                else "with an adapter, and the job has none"
            )
            problems.append(Problem(where, f"the checkpoint was saved {difference}; {REMEDY}"))
        elif before["base"] != after["base"]:
            message = (
                "the checkpoint holds the adapter alone, and the base weights it was trained on have changed"
            )
            problems.append(Problem(where, f"{message}; {REMEDY}"))
        else:
            # What is off has no key.
            pairs = {key: (before.get(key, False), after.get(key, False)) for key in {**before, **after}}
            changed = {key: (was, now) for key, (was, now) in pairs.items() if was != now}
            difference = ", ".join(f"{key} was {was} and is {now}" for key, (was, now) in changed.items())
            problems.append(Problem(where, f"cannot change when a run resumes: {difference}; {REMEDY}"))
    if problems:
        raise InvalidJob(problems)
