"""Two ranks of a trainer whose run is to stop while they wait for generators: at first for one, as the host says to
rank 0, then for responses, as rank 1 alone knows.

Each rank: `stopped_ranks.py`, with torchrun's environment and as ASKED a file that rank 0 makes once prompts are
under way. Prints how its waits ended, a line for each.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from tests.support.kubernetes.kube import eventually
from tests.unit.trainer.rollout.test_fleet import PROMPTS, World
from tests.unit.trainer.scoring.servers import Generator
from torch import distributed

from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.transport.http import HttpClient


def ended(wait: Callable[[], object]) -> str:
    try:
        wait()
    except Stopped as error:
        return f"Stopped: {error}"
    return "nothing stopped it"


def main(ranks: Ranks, http: HttpClient) -> None:
    world = World(http, ranks)
    stop = world.control.stop_requested
    if ranks.first:
        stop.set()
    print(ended(lambda: world.publish(0)))
    stop.clear()

    server = Generator(http, "held")
    server.open.clear()
    world.announce(server)
    world.publish(0)

    mark = Path(os.environ["ASKED"])

    def tell() -> None:
        eventually(lambda: server.asked, "prompts are under way")
        mark.touch()

    def stop_once_asked() -> None:
        eventually(mark.exists, "prompts are under way")
        stop.set()

    threading.Thread(target=tell if ranks.first else stop_once_asked).start()
    ranks.watch_each_other(stop)
    print(ended(lambda: list(world.rollouts.stream(PROMPTS, 2))), flush=True)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    with HttpClient("token") as http:
        main(Ranks(distributed.get_rank(), distributed.get_world_size(), torch.device("cpu")), http)
        distributed.barrier()
        os._exit(0)
