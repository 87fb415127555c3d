"""Generation in the trainer with prompts ranked by length, as it always is, and as they come: padding and time.

    .venv/bin/python benchmarks/trainer/ranking.py [--prompts 128] [--rounds 3]

Prompts of lognormal length (median 96 tokens, sigma 0.8, 8 to 768) to a Llama of 3.3e6 parameters with random weights,
16 tokens of response each, in batches of at most 8,192 tokens. Padding is the share of the tokens of all batches'
prompts that is not a prompt's; what it is within ranked batches, a start at each batch's shortest prompt, fed on a
token at a time from there (ChatLearn's `min_prompt_length`), could save at most, and `steps` is what that would add:
forward passes of one token, beside those of the responses.
"""

import argparse
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.local_generation.shared import generate_shared
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.tensors.records import Prompt

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.tiny.models import byte_tokenizer

TOKENIZER, RANKS = byte_tokenizer(), Ranks(0, 1, torch.device("cpu"))
TOKENS, NEW = 8192, 16
SAMPLING = Sampling(maxNewTokens=NEW, minNewTokens=NEW)


@dataclass
class Engine:
    """Stand-in for a trained model in generation: whole, on one device."""

    model: LlamaForCausalLM
    micro_batch_tokens: int = TOKENS
    device: str = "cpu"

    @contextmanager
    def gathered(self) -> Iterator[LlamaForCausalLM]:
        yield self.model


def make_engine() -> Engine:
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4}
    ends = {"eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id}
    config: Any = LlamaConfig(vocab_size=len(TOKENIZER), max_position_embeddings=1024, **shape, **ends)
    return Engine(LlamaForCausalLM(config).eval())


def make_prompts(count: int) -> list[Prompt]:
    draw = torch.Generator().manual_seed(0)
    lengths = (0.8 * torch.randn(count, generator=draw) + math.log(96)).exp().clamp(8, 768).long()
    ids = (torch.randint(32, 127, (n,), generator=draw).tolist() for n in lengths.tolist())
    return [Prompt(f"0/{i}", tuple(tokens), {}) for i, tokens in enumerate(ids)]


def batches(prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    """In this order, as many to a batch as the trainer takes."""
    size = TOKENS // (max(len(p.tokens) for p in prompts) + NEW)
    return [prompts[i : i + size] for i in range(0, len(prompts), size)]


def padding(cut: Sequence[Sequence[Prompt]]) -> float:
    lengths = [[len(p.tokens) for p in batch] for batch in cut]
    return 1 - sum(map(sum, lengths)) / sum(max(own) * len(own) for own in lengths)


def seconds(engine: Engine, calls: Sequence[Sequence[Prompt]]) -> float:
    began = time.perf_counter()
    for prompts in calls:
        generate_shared(
            cast(TrainedModel, engine),
            RANKS,
            TOKENIZER,
            prompts,
            SamplingRequest(SAMPLING),
            0,
            threading.Event(),
        )
    return time.perf_counter() - began


def format_times(times: Sequence[float]) -> str:
    return f"{median(times):.1f} s ({min(times):.1f} to {max(times):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    engine, prompts = make_engine(), make_prompts(options.prompts)
    ranked = batches(sorted(prompts, key=lambda p: len(p.tokens)))
    # One call ranks its prompts; a call for each batch as it comes leaves the batches as they are.
    calls = {"as they come": batches(prompts), "ranked": [prompts]}
    seconds(engine, [prompts[:8]])
    times = {name: [0.0] * options.rounds for name in calls}
    for i in range(options.rounds):
        for name, made in calls.items():
            times[name][i] = seconds(engine, made)
    steps = sum(max(own) - min(own) for own in ([len(p.tokens) for p in batch] for batch in ranked))
    for name, cut in (("as they come", calls["as they come"]), ("ranked", ranked)):
        print(f"{name}: padding {padding(cut):.1%}, {format_times(times[name])}")
    print(f"{len(ranked)} batches; a start at the shortest prompt: {steps} steps beside {len(ranked) * NEW}")


if __name__ == "__main__":
    main()
