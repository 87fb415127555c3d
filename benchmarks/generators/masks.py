"""Sampling masks in the server of a generator: microseconds of one core a token, in vLLM and in our extension.

    .venv/bin/python benchmarks/generators/masks.py

vLLM appends `topK` log-probabilities of each token to those of its request, and ours takes from them the tokens that
`topP` left. The best of several runs.
"""

import itertools
import math
import time
from collections.abc import Callable

from vllm.logprobs import FlatLogprobs, append_logprobs_for_next_position
from vllm.outputs import CompletionOutput

from rlhf_trainer.engines.vllm.front.streams import sampled_from

TOKENS, RUNS = 512, 20


def best(work: Callable[[], object]) -> float:
    """Microseconds a token."""
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds) / TOKENS * 1e6


def appended(top_k: int, left: int) -> FlatLogprobs:
    """Log-probabilities of tokens, each sampled from the `left` likeliest of `top_k`."""
    flat, ids = FlatLogprobs(), list(range(top_k))
    values = [-math.log(left)] * left + [-math.inf] * (top_k - left)
    for _ in range(TOKENS):
        appended_row = [0, *ids], [values[0], *values], itertools.repeat(None)
        append_logprobs_for_next_position(flat, *appended_row, rank=1, num_logprobs=top_k)
    return flat


def main() -> None:
    print("| topK | left by topP | vLLM | ours |\n| --- | --- | --- | --- |")
    for top_k, left in ((20, 5), (20, 20), (64, 5), (256, 5), (256, 40), (256, 256)):
        output = CompletionOutput(0, "", [0] * TOKENS, None, appended(top_k, left))
        theirs = best(lambda top_k=top_k, left=left: appended(top_k, left))
        ours = best(lambda output=output, top_k=top_k: sampled_from(output, top_k))
        print(f"| {top_k} | {left} | {theirs:.1f} | {ours:.1f} |")


if __name__ == "__main__":
    main()
