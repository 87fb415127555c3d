"""Ranks that rank 0 gives the responses of several turns. Each prints what it then has.

Each rank: `episode_ranks.py`, with torchrun's environment.
"""

import os

import torch
from tests.unit.trainer.rollout.test_episodes import PLACES, described, one_turn, rollouts, two_turns
from torch import distributed

from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.responses import collected


def main(ranks: Ranks) -> None:
    own = Responses(rollouts(two_turns(masked=True), one_turn())) if ranks.first else Responses()
    print(described(collected(ranks, 1, own, PLACES).episode.columns), flush=True)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    main(Ranks(distributed.get_rank(), distributed.get_world_size(), torch.device("cpu")))
    distributed.barrier()
    os._exit(0)
