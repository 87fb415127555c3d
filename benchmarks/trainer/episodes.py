"""Episodes of several turns with a generator that answers at once: what the driver and the environments' workers cost.

    .venv/bin/python benchmarks/trainer/episodes.py [--episodes 1000] [--turns 20] [--workers 1] [--parallel 64]
        [--tokenizer FOLDER]

Plays so many episodes through the parts that a trainer has for them: turns of 24 tokens, made here, go as text to a
class in worker processes, whose reply of a line is rendered and tokenized by the chat template; without a tokenizer by
ChatML with a token a byte. One JSON line: turns and episodes a second, processor time a turn of this process, the
driver, and of its workers, and the most memory of each.
"""

import argparse
import asyncio
import json
import resource
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support
from tests.support.tiny.models import chat_tokenizer
from transformers import PreTrainedTokenizerBase

from rlhf_api.contract.run import Member
from rlhf_api.roles import Role
from rlhf_api.sections.data import Data
from rlhf_api.sections.environment import Environment
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.encode import end_tokens
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.environments.environments import Environments
from rlhf_trainer.environments.rendering import Rendering
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.models.pretrained.load import load_tokenizer
from rlhf_trainer.rollout.clients.turns_client import TurnsClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Prompt

TURN_TOKENS, RESPONSES = 24, 4
MEMBER = Member(role=Role.GENERATOR, uid="u", name="g", address="http://nowhere", index=0)
MB = 1e6


class Instant:
    """The engine: each turn is the same tokens, at once."""

    def __init__(self, turn: list[int]) -> None:
        self._turn, self._logprobs = array("i", turn), array("f", [-0.5]) * len(turn)

    async def ask(
        self, _member: Member, work: PartialRollout, progress: Callable[[], None]
    ) -> PartialRollout:
        for response in work.responses:
            response.add(self._turn, self._logprobs, 1)
            response.finish("stop")
            work.ended(work.prompt, response)
        progress()
        return work

    async def listens(self, _member: Member) -> bool:
        return True


async def measure(
    tokenizer: PreTrainedTokenizerBase, episodes: int, turns: int, workers: int, parallel: int
) -> dict[str, float]:
    sampling = Sampling(maxNewTokens=TURN_TOKENS)
    ends, stops = end_tokens(tokenizer, None, sampling), StopStrings(tokenizer, ())
    section = Environment(
        path="benchmarks.trainer.counting:Counter",
        turns=turns,
        maxTokens=100_000,
        workers=workers,
        parallel=parallel,
        seconds=3600,
    )
    turn = [*range(100, 100 + TURN_TOKENS - 1), ends[-1]]
    pool = WorkerPool(section)
    await pool.start()
    rendering = Rendering(tokenizer, Data(train=("unused",), maxPromptLength=200), ends, stops, pool.schemas)
    client = TurnsClient(
        Instant(turn),
        Environments(section, rendering, pool),
        sampling=sampling,
        ends=ends,
        stops=stops,
        most=section.max_tokens,
    )
    before = processor_seconds()
    began, used = time.monotonic(), time.process_time()
    works = [begin(number) for number in range(episodes // RESPONSES)]
    slots = asyncio.Semaphore(parallel // RESPONSES)

    async def play(work: PartialRollout) -> PartialRollout:
        async with slots:
            return await client.ask(MEMBER, work, lambda: None)

    done = await asyncio.gather(*map(play, works))
    seconds, driver = time.monotonic() - began, time.process_time() - used
    others = processor_seconds() - before
    memory = max(child.memory_info().rss for child in psutil.Process().children())
    await pool.close()
    outcomes = [response.outcome for work in done for response in work.responses]
    count = sum(outcome.turns for outcome in outcomes if outcome is not None and not outcome.problem)
    assert count == turns * len(outcomes), "each episode has all its turns"
    return {
        "episodes": len(outcomes),
        "turns": turns,
        "workers": workers,
        "parallel": parallel,
        "seconds": seconds,
        "turns_per_second": count / seconds,
        "episodes_per_second": len(outcomes) / seconds,
        "driver_ms_per_turn": 1e3 * driver / count,
        "worker_ms_per_turn": 1e3 * others / count,
        "driver_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB,
        "worker_mb": memory / MB,
    }


def processor_seconds() -> float:
    """Of the workers."""
    return float(sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children()))


def begin(number: int) -> PartialRollout:
    row = {"prompt": [{"role": "user", "content": "Begin."}], "number": number}
    return PartialRollout.begin(Prompt(f"0/{number}", (1,), row), RESPONSES)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=1000, help="a multiple of 4")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--tokenizer")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else chat_tokenizer()
    made = asyncio.run(measure(tokenizer, options.episodes, options.turns, options.workers, options.parallel))
    print(json.dumps({name: round(value, 3) for name, value in made.items()}))


if __name__ == "__main__":
    main()
