"""A step's wait for a slow judge, beside the shortest that its concurrency allows: the reward role's own server and the
trainer's own client, with a judge that does nothing but wait.

    .venv/bin/python benchmarks/trainer/judge.py [--responses 512] [--tokens 8000] [--seconds 5] [--concurrency 64]

One JSON line for each case: seconds from the end of generation until the last score, the shortest possible, the ratio,
and the processor time of both sides for a response, in milliseconds. `at once`: all responses end together. `as they
end`: one by one, over as long as the judge needs for all, each sent when it ends. `after all`: the same, but none
is sent before the last has ended.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from heapq import heapify, heapreplace
from pathlib import Path

from aiohttp import web

from rlhf_api.contract.proof import Prover
from rlhf_api.contract.run import Member, Membership
from rlhf_api.host.event_loop import EventLoop
from rlhf_api.roles import Role
from rlhf_trainer.dispatch.control import Control
from rlhf_trainer.dispatch.roster import Roster
from rlhf_trainer.models.pretrained.create import create_tokenizer
from rlhf_trainer.ranks.ranks import Message
from rlhf_trainer.scoring.call_queue import MOST_PER_CALL
from rlhf_trainer.scoring.client import AHEAD, Scorer
from rlhf_trainer.scoring.messages import SCORE_ROUTE, Part, rows_of, unpack
from rlhf_trainer.scoring.reward_client import RewardClient
from rlhf_trainer.scoring.rewards import Function, Functions
from rlhf_trainer.scoring.samples import Result, Sample
from rlhf_trainer.scoring.server import application
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.transport.serving import BACKLOG

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.ports import free_port

TOKEN, PROMPT = "token", [2] * 100


class Judge:
    """Takes the same time for each response. Implements `samples.Scorer`."""

    def __init__(self, seconds: float, concurrency: int) -> None:
        self.concurrency, self._seconds = concurrency, seconds

    def size(self, count: int) -> int:  # noqa: ARG002
        return 1

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        await asyncio.sleep(self._seconds * len(samples))
        return [1.0] * len(samples)


def serve(judge: Judge) -> str:
    """Starts the role's server on a loop of its own; returns its address."""
    loop = EventLoop("role")
    functions = Functions(create_tokenizer(["a b c"] * 9, 300), 600.0, [Function("judge", 1.0, 0, judge)])

    async def scored(message: Message) -> Message:
        scores, report = await functions.score(unpack(message), rows_of(message))
        return {"scores": scores}, report.model_dump(mode="json")

    def waits(message: Message) -> Awaitable[Message]:
        return scored(message)

    async def start() -> int:
        prover = Prover(TOKEN, "127.0.0.1", free_port())
        app = application(SCORE_ROUTE, lambda message: message, prover, waits=waits)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", prover.port, backlog=BACKLOG).start()
        return prover.port

    return f"http://127.0.0.1:{loop.run(start())}"


def shortest(ends: Sequence[float], judge: float, concurrency: int) -> float:
    """The shortest possible time of the last score, of responses that end at these times."""
    free = [0.0] * concurrency
    heapify(free)
    for end in sorted(ends):
        heapreplace(free, max(free[0], end) + judge)
    return max(free)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--joined", type=int, default=MOST_PER_CALL, help="responses of a message, at most")
    options = parser.parse_args()
    count, seconds, concurrency = options.responses, options.seconds, options.concurrency
    address, control = serve(Judge(seconds, concurrency)), Control(total_steps=1)
    member = Member(role=Role.REWARD, name="reward-0", uid="0", address=address)
    control._membership = Membership(members=(member,))
    with HttpClient(TOKEN) as http:
        scorer = Scorer(
            *(Role.REWARD, SCORE_ROUTE),
            http=http,
            roster=Roster(control, http),
            chunk_tokens=1,
            timeout=600.0,
            patience=600.0,
            at_once=AHEAD * concurrency * MOST_PER_CALL,
            most_joined=options.joined,
        )
        client = RewardClient(
            "scores",
            functions=(Part.FUNCTIONS, scorer),
            model=None,
            max_failed_share=0.0,
            patience=600.0,
            stopping=lambda: False,
            report=lambda _: None,
        )
        generation = seconds * count / concurrency
        for case in ("at once", "as they end", "after all"):
            responses = [[3 + i % 7, *[3] * (options.tokens - 1)] for i in range(count)]
            ends = [0.0 if case == "at once" else generation * (i + 1) / count for i in range(count)]
            sequences, rows = (
                Sequences.pack([(PROMPT, r) for r in responses]),
                [{"i": i} for i in range(count)],
            )
            began, used = time.perf_counter(), time.process_time()
            for end, response, row in zip(ends, responses, rows, strict=True):
                time.sleep(max(0.0, began + end - time.perf_counter()))
                if case != "after all":
                    client.begin(Sequences.pack([(PROMPT, response)]), row)
            generated = time.perf_counter()
            client.ask(sequences, rows)
            waited = time.perf_counter() - generated
            best = shortest(ends, seconds, concurrency) - ends[-1]
            line = {"case": case, "waited": waited, "shortest": best, "ratio": waited / best}
            line["processor_ms"] = 1e3 * (time.process_time() - used) / count
            print(
                json.dumps({k: v if isinstance(v, str) else round(v, 3) for k, v in line.items()}), flush=True
            )


if __name__ == "__main__":
    main()
