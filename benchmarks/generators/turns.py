"""Prefix cache of a vLLM generator across the turns of episodes, by its own metrics.

    .venv/bin/python benchmarks/generators/turns.py [--prompts 8] [--responses 4] [--turns 20] [--set OPTION=VALUE]

A generator role serves a tiny model; the trainer's own client plays episodes of `--turns` turns of 24 tokens with the
environment of `benchmarks/trainer/counting.py` in a worker process. One JSON line: prompt tokens that the engine was
asked with, those whose keys and values it still had, their share and the greatest possible one, that of tokens which it
had read or sampled in the episode before, and turns a second. `--set` gives options of vLLM, as
`enable-prefix-caching=false`.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for benchmarks and tests.support
from serving import Server, run_config, tell
from tests.support.tiny.models import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_api.sections.data import Data
from rlhf_api.sections.environment import Environment
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.encode import end_tokens
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.environments.environments import Environments
from rlhf_trainer.environments.record import turns_of
from rlhf_trainer.environments.rendering import Rendering
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.rollout.clients.turns_client import TurnsClient
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import Broadcaster

TURN, LONGEST = 24, 4096
COUNTERS = ("queries", "hits")


async def play(
    http: HttpClient, server: Server, model: Path, options: argparse.Namespace
) -> list[PartialRollout]:
    tokenizer, sampling = AutoTokenizer.from_pretrained(model), Sampling(maxNewTokens=TURN, minNewTokens=TURN)
    ends, stops = end_tokens(tokenizer, None, sampling), StopStrings(tokenizer, ())
    section = Environment(
        path="benchmarks.trainer.counting:Counter", turns=options.turns, maxTokens=LONGEST - 256, workers=1
    )
    pool = WorkerPool(section)
    await pool.start()
    rendering = Rendering(tokenizer, Data(train=("unused",), maxPromptLength=200), ends, stops, pool.schemas)
    client = TurnsClient(
        VllmClient(http, sampling=sampling, seed=1, ends=ends, stops=stops),
        Environments(section, rendering, pool),
        sampling=sampling,
        ends=ends,
        stops=stops,
        most=section.max_tokens,
    )
    rows = [{"prompt": [{"role": "user", "content": "Begin."}], "number": i} for i in range(options.prompts)]
    works = [
        PartialRollout.begin(Prompt(f"0/{i}", (1,), row), options.responses) for i, row in enumerate(rows)
    ]
    try:
        return await asyncio.gather(*(client.ask(server.member(), work, lambda: None) for work in works))
    finally:
        await pool.close()


def known_tokens(work: PartialRollout) -> tuple[int, int]:
    """Prompt tokens of the requests for a prompt's turns, and those of them that the engine has read or sampled by
    then: of a later turn all up to the end of the turn before. The first turns of all responses are one request."""
    requested, known = len(work.prompt.tokens), 0
    for response in work.responses:
        before = 0
        for turn in turns_of(response.tokens, response.sampled):
            if start := turn.end - len(turn.sampled):
                requested += len(work.prompt.tokens) + start
                known += len(work.prompt.tokens) + before
            before = turn.end
    return requested, known


def counters(http: HttpClient, server: Server) -> dict[str, float]:
    """vLLM's own counts of tokens."""

    async def read() -> str:
        async with http.session.get(f"{server.address}/metrics") as reply:
            return await reply.text()

    text = http.run(read())
    matches = {
        name: re.search(rf"^vllm:prefix_cache_{name}_total\S* (\S+)$", text, re.M) for name in COUNTERS
    }
    return {name: float(match[1]) if match else 0.0 for name, match in matches.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--responses", type=int, default=4)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE")
    options = parser.parse_args()
    engine = {name: json.loads(value) for name, _, value in (each.partition("=") for each in options.set)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny_model(folder / "model", tie=True, seed=0, chat=True, max_position_embeddings=LONGEST)
        config = run_config(model, folder, "float32", LONGEST - 128, engine)
        server = Server(folder, "generator", "0", config).launch()
        try:
            server.wait_ready()
            with HttpClient(server.token) as http:
                settings = {"host": "127.0.0.1", "timeout_s": 60.0, "device": torch.device("cpu")}
                loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
                sync = Broadcaster(http, bucket_bytes=1 << 20, **settings)
                assert sync.send([server.member()], loaded.named_parameters, 1).holders
                before, began = counters(http, server), time.monotonic()
                works = http.run(play(http, server, model, options))
                seconds, after = time.monotonic() - began, counters(http, server)
                sync.close()
        finally:
            server.kill()
    requested, known = (sum(each) for each in zip(*map(known_tokens, works), strict=True))
    queries, hits = (after[name] - before[name] for name in COUNTERS)
    figures = {
        "turns": options.turns,
        "episodes": options.prompts * options.responses,
        "requested": requested,
    }
    figures |= {
        "queries": queries,
        "hits": hits,
        "share": hits / max(1, queries),
        "possible": known / requested,
    }
    tell({**figures, "turns/s": options.turns * options.prompts * options.responses / seconds})


if __name__ == "__main__":
    main()
