"""Each of two ranks, with torchrun's environment: a model's moving average after updates, swapped in, for every setting
of the arguments, a ZeRO stage or `offload`: stage 3 with all partitions on the CPU. Prints one JSON line each: what the
average and then the model's own weights infer, and whether a resumed run goes on alike, bit for bit.
"""

import json
import os
import sys
from typing import Any

import torch
from tests.unit.trainer.models.on_ranks.ranks import ADAM, batch, copied, make, reader, same, step
from torch import distributed

from rlhf_api.sections.roles import Trainer
from rlhf_trainer.models.average import MovingAverage
from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.models.trained_model import TrainedModel

KIND = "untied"
CPU = {"device": "cpu"}
OFFLOAD = {
    "stage": 3,
    "offload_param": CPU,
    "offload_optimizer": CPU,
    "stage3_param_persistence_threshold": 0,
}


class Averaged:
    """A model with its moving average."""

    def __init__(self, zero: dict[str, Any], seed: int = 0) -> None:
        settings = {"zero_optimization": zero}
        self.model = TrainedModel(
            make(KIND, seed), ADAM, Trainer(), deepspeed=settings, micro_batch_tokens=40, pad_token_id=0
        )
        self.average = MovingAverage(self.model, 0.5)

    def step(self, update: int) -> None:
        step(self.model, KIND, update)
        self.average.update()

    def inferred(self) -> list[list[float]]:
        """By the average and by the model's own weights."""
        sequences, _ = batch(0)

        def read() -> list[float]:
            return self.model.infer(sequences, reader(KIND), sequences.response_lengths).tolist()

        with self.average.swapped():
            averaged = read()
        return [averaged, read()]

    def saved(self) -> list[dict[str, torch.Tensor]]:
        return [copied(training_state(self.model)), copied(self.average.state())]

    def load(self, saved: list[dict[str, torch.Tensor]]) -> None:
        load_training_state(self.model, saved[0].__getitem__)
        self.average.load(saved[1].__getitem__)


def ran(zero: dict[str, Any]) -> list[Any]:
    run, again = Averaged(zero), Averaged(zero, seed=1)
    for update in range(2):
        run.step(update)
    inferred = run.inferred()
    again.load(run.saved())
    alike = again.inferred() == inferred
    for each in (run, again):
        each.step(2)
    alike = alike and again.inferred() == run.inferred()
    return [*inferred, alike and all(map(same, again.saved(), run.saved()))]


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for setting in sys.argv[1:]:
        print(json.dumps(ran(OFFLOAD if setting == "offload" else {"stage": int(setting)})), flush=True)
    distributed.barrier()
    os._exit(0)
