"""Each of two ranks, with torchrun's environment: a model's moving average after updates, swapped in, for every ZeRO
stage of the arguments. Prints what the average and then the model's own weights infer, one JSON line a stage.
"""

import json
import os
import sys

from tests.models.ranks import ADAM, batch, make, reader, step
from torch import distributed

from rlhf_api.roles import Trainer
from rlhf_trainer.models.average import MovingAverage
from rlhf_trainer.models.trained_model import TrainedModel

KIND = "untied"


def inferred(stage: int) -> list[list[float]]:
    settings = {"zero_optimization": {"stage": stage}}
    model = TrainedModel(
        make(KIND), ADAM, Trainer(), deepspeed=settings, micro_batch_tokens=40, pad_token_id=0
    )
    average, (sequences, _) = MovingAverage(model, 0.5), batch(0)

    def read() -> list[float]:
        return model.infer(sequences, reader(KIND), sequences.response_lengths).tolist()

    for update in range(2):
        step(model, KIND, update)
        average.update()
    with average.swapped():
        averaged = read()
    return [averaged, read()]


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for stage in map(int, sys.argv[1:]):
        print(json.dumps(inferred(stage)), flush=True)
    distributed.barrier()
    os._exit(0)
