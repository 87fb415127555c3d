"""Two ranks of a trainer that generates itself, whose run is to stop while the first of two held-out sets is judged.

Each rank: `evaluation_ranks.py`, with torchrun's environment. Prints how the evaluation ended, and what it then hears
of rank 0.
"""

import os
from dataclasses import replace

import torch
from tests.unit.trainer.training.running import Job
from torch import distributed

from rlhf_api.dataset.rows import PromptRow
from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.local_generation.shared import generate_shared
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.rollout.evaluation import evaluate
from rlhf_trainer.rollout.in_flight.requests import Responses

SETS = "spec.evaluation={function: 'a:b', sets: [{name: one, data: [a]}, {name: two, data: [b]}]}"
ROWS = [PromptRow(prompt=f"held out {i}") for i in range(3)]


def main(ranks: Ranks) -> None:
    job = Job("grpo", "", SETS)
    ctx = replace(job.ctx, ranks=ranks)

    def respond(batch, request):
        given = ranks, ctx.tokenizer, batch, request, 0, ctx.stop
        return Responses(generate_shared(job.models["policy"], *given))

    def judge(_sequences, _rows):
        raise Stopped("stopped while the reward was scoring")

    try:
        evaluate(ctx, {"one": ROWS, "two": ROWS}, respond, {"evaluation": judge} if ranks.first else {})
    except Stopped as error:
        print(error)
    print(ranks.broadcast_str(lambda: "saving"), flush=True)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    main(Ranks(distributed.get_rank(), distributed.get_world_size(), torch.device("cpu")))
    distributed.barrier()
    os._exit(0)
