"""Each of two ranks, with torchrun's environment: float16 updates at every ZeRO stage, of which the first overflows on
rank 1 alone. Prints one JSON line each: what both updates tell, and what the first one changed of the state."""

import json
import os
from typing import Any

import torch
from tests.unit.trainer.models.on_ranks.ranks import ADAM, copied, make
from torch import distributed

from rlhf_api.sections.roles import Trainer
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.state import training_state
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.models.zero import deepspeed
from rlhf_trainer.tensors.records import Sequences

SEQUENCES = Sequences.pack([((5, 6, 7), (8, 9, 10)), ((12, 11), (13, 14, 15)), ((3, 4), (5, 6, 7))])
FP16 = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}


def report_stage(stage: int) -> list[Any]:
    settings = {"fp16": FP16, "zero_optimization": {"stage": stage}}
    engine = TrainedModel(
        make("untied"), ADAM, Trainer(), deepspeed=settings, micro_batch_tokens=8, pad_token_id=0
    )

    def update(factor: float) -> dict[str, float]:
        here = factor if engine.rank == 1 else 1.0
        return engine.update(SEQUENCES, ResponseLogprobs(), lambda out, _: (-out.sum() / 9 * here, {}), 0.01)

    before = copied(training_state(engine))
    first, after = update(1e30), copied(training_state(engine))
    return [first, [name for name in after if not torch.equal(after[name], before[name])], update(1.0)]


if __name__ == "__main__":
    # torch has all of float16 on a CPU, DeepSpeed asks only for fast float16.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
    distributed.init_process_group("gloo")
    for stage in (1, 2, 3):
        print(json.dumps(report_stage(stage)), flush=True)
    distributed.barrier()
    os._exit(0)
