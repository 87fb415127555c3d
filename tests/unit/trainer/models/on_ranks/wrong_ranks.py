"""Each of two ranks, with torchrun's environment: snapshots of models whose master weights are not the live ones.
Prints one JSON line for each case: what the snapshot is refused with, or null."""

import json
import os
from collections.abc import Callable
from typing import Any

import torch
from tests.unit.trainer.models.on_ranks import ranks
from torch import distributed

from rlhf_api.sections.roles import Trainer
from rlhf_trainer.checkpoint.wrong_snapshot import WrongSnapshot
from rlhf_trainer.models import trained_model
from rlhf_trainer.models.state import training_state
from rlhf_trainer.models.trained_model import TrainedModel

FIRST = "model.layers.0.mlp.up_proj.weight"
Break = Callable[[TrainedModel], None]


def whole(model: TrainedModel) -> None:
    """One element of one weight moves on rank 1."""
    if model.rank == 1:
        model.unwrapped.get_parameter(FIRST).data.view(-1)[-1] += 1


def partition(model: TrainedModel) -> None:
    """The same, of rank 1's partition."""
    if model.rank == 1:
        model.unwrapped.get_parameter(FIRST).ds_tensor.data[0] += 1


def nothing(_model: TrainedModel) -> None: ...


CASES: dict[str, tuple[dict[str, Any], Break]] = {
    **{f"intact-{n}": ({"zero_optimization": {"stage": n}}, nothing) for n in range(4)},
    "round-robin-1": ({"zero_optimization": {"stage": 1, "round_robin_gradients": True}}, nothing),
    "round-robin-2": (
        {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "round_robin_gradients": True}},
        nothing,
    ),
    "whole-1": ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}, whole),
    "whole-2": ({"zero_optimization": {"stage": 2}}, whole),
    "partition-3": (
        {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
        partition,
    ),
}


def as_given(user: dict[str, Any], *given: Any) -> dict[str, Any]:
    """The trainer's settings, without its mend for `round_robin_gradients`."""
    made = settings(user, *given)
    if "round_robin_gradients" in user["zero_optimization"]:
        made["zero_optimization"]["round_robin_gradients"] = True
    return made


def refused(deepspeed: dict[str, Any], spoil: Break) -> str | None:
    model = TrainedModel(
        ranks.make("untied"),
        ranks.ADAM,
        Trainer(),
        deepspeed=deepspeed,
        micro_batch_tokens=40,
        pad_token_id=0,
    )
    ranks.step(model, "untied", 0)
    spoil(model)
    try:
        for _ in training_state(model):
            pass
    except WrongSnapshot as error:
        return str(error)
    return None


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    settings, trained_model.deepspeed_settings = trained_model.deepspeed_settings, as_given
    for case in CASES.values():
        print(json.dumps(refused(*case)), flush=True)
    distributed.barrier()
    os._exit(0)
