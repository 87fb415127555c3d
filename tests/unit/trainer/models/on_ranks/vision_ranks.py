"""Each of some ranks, with torchrun's environment: two updates of a model that reads images on two
sequences, of which one has an image. Prints for some ZeRO stages the norm of the first gradient, and in the end the sum
of each parameter.

    vision_ranks.py POLICY
"""

import json
import os
import sys
from dataclasses import replace

import torch
from tests.unit.trainer.models.on_ranks.ranks import ADAM
from torch import distributed

from rlhf_api.sections.roles import Trainer
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.pretrained.load import load_policy
from rlhf_trainer.models.pretrained.vision import freeze
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.images import Images
from rlhf_trainer.tensors.records import Sequences


def trained(policy: str, stage: int, *, frozen: bool) -> tuple[float, list[float]]:
    model = load_policy(policy, torch.float32)
    if frozen:
        freeze(model)
    pad, noise = model.config.image_token_id, torch.Generator().manual_seed(0)
    patches = torch.rand(4, 48, generator=noise)
    one = torch.ones(1, dtype=torch.int64)
    images = Images((patches,), torch.tensor([[1, 2, 2]]), one, torch.tensor([1, 0]), 2)
    packed = Sequences.pack([((20, pad, 21, 22), (23, 24)), ((25, 26, 27, 28), (29, 30))])
    engine = TrainedModel(
        model,
        ADAM,
        Trainer(),
        deepspeed={"zero_optimization": {"stage": stage}},
        micro_batch_tokens=6,
        pad_token_id=0,
    )
    sequences, read = replace(packed, images=images), ResponseLogprobs()
    norms = [
        engine.update(sequences, read, lambda out, _: (-out.sum() / 4, {}), 0.001)["grad_norm"] for _ in "12"
    ]
    return norms[0], [float(parameter.detach().double().sum()) for parameter in model.parameters()]


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for stage, frozen in ((0, False), (1, False), (2, True)):
        print(json.dumps(trained(sys.argv[1], stage, frozen=frozen)), flush=True)
    distributed.barrier()
    os._exit(0)
