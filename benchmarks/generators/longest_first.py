"""Prompts given to one real vLLM server in the dataset's order and longest first, in turns, more than it runs at once.

    .venv/bin/python benchmarks/generators/longest_first.py [--rounds 5]

Responses are as long as the benchmark says: `growing`, four times their prompt's length, as where a text is sorted,
translated or copied; `unrelated`, the same lengths, each for another prompt. One JSON line for each kind: medians over
the rounds of the steps of vLLM's engine, which on a GPU take about as long for one sequence as for 16, and of seconds.
"""

import argparse
import os
import random
import re
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median

import torch
from rollouts import publish
from serving import Server, make_model, run_config, save, tell

from rlhf_api.contract.run import Member
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.dispatch.assignments import Limits
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.in_flight.rounds import start_round
from rlhf_trainer.rollout.partial_rollout import PartialRollout, longest_first
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.http import HttpClient

SHORTEST, LONGEST, FACTOR = 8, 64, 4
VOCABULARY = 512


class OfLength:
    """Responses of a given length to each prompt, by its id."""

    def __init__(self, http: HttpClient, lengths: dict[str, int]) -> None:
        self._lengths = lengths
        self._client: Callable[[int], VllmClient] = cache(
            lambda n: VllmClient(http, sampling=Sampling(maxNewTokens=n, minNewTokens=n), seed=0, ends=[0])
        )

    async def ask(self, member: Member, work: PartialRollout, progress: Callable[[], None]) -> PartialRollout:
        return await self._client(self._lengths[work.prompt.id]).ask(member, work, progress)

    async def listens(self, member: Member) -> bool:
        return await self._client(1).listens(member)


def steps(server: Server) -> int:
    """Steps of the engine so far."""
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=60) as page:
        counts = re.findall(r"^vllm:iteration_tokens_total_count.* ([0-9.]+)$", page.read().decode(), re.M)
    return int(sum(map(float, counts)))


def measured(
    server: Server,
    http: HttpClient,
    prompts: Sequence[Prompt],
    lengths: dict[str, int],
    *,
    ranked: bool,
) -> tuple[int, float]:
    """The engine's steps and the seconds for all prompts."""
    works, member = [PartialRollout.begin(prompt, 1) for prompt in prompts], server.member()
    before, began = steps(server), time.monotonic()
    outcome = start_round(
        http,
        OfLength(http, lengths),
        longest_first(works) if ranked else works,
        [member],
        limits=Limits(len(works), 600),
        current=lambda: {member.uid: member},
    ).result(600)
    seconds = time.monotonic() - began
    assert len(outcome.results) == len(works), outcome
    return steps(server) - before, seconds


def compare(kind: str, server: Server, http: HttpClient, options: argparse.Namespace) -> None:
    dice, took = random.Random(kind), {False: [], True: []}
    for number in range(options.rounds):
        sizes = [dice.randint(SHORTEST, LONGEST) for _ in range(options.prompts)]
        lengths_in_order = sizes if kind == "growing" else dice.sample(sizes, len(sizes))
        for ranked in (number % 2 == 0, number % 2 == 1):
            # Other tokens each time: no round finds a prompt in the cache.
            prompts = [
                Prompt(f"{kind}/{number}/{ranked}/{i}", tuple(dice.choices(range(2, VOCABULARY), k=size)), {})
                for i, size in enumerate(sizes)
            ]
            lengths = {prompt.id: FACTOR * n for prompt, n in zip(prompts, lengths_in_order, strict=True)}
            took[ranked].append(measured(server, http, prompts, lengths, ranked=ranked))
    pairs = list(zip(took[False], took[True], strict=True))
    tell(
        {
            "kind": kind,
            "steps as given": median(given for (given, _), _ in pairs),
            "steps longest first": median(first for _, (first, _) in pairs),
            "ratios": [round(first / given, 3) for (given, _), (first, _) in pairs],
            "seconds as given": median(given for (_, given), _ in pairs),
            "seconds longest first": median(first for _, (_, first) in pairs),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("rounds", 5), ("prompts", 64), ("at-once", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), make_model("tiny", device)
        save(model, folder / "model")
        dtype = "bfloat16" if device.type == "cuda" else "float32"
        config = run_config(
            folder / "model", folder, dtype, LONGEST * FACTOR, {"max-num-seqs": options.at_once}
        )
        server = Server(folder, "generator", "0", config)
        try:
            server.launch()
            server.wait_ready()
            publish(server, model, device)
            with HttpClient(server.token) as http:
                for kind in ("growing", "unrelated"):
                    compare(kind, server, http, options)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
