"""Responses generated in the trainer itself, by Hugging Face's `generate`, spread over the ranks."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rlhf_api.spec import Sampling

from ..comms.ranks import Ranks
from ..data.encode import end_tokens
from ..models.trained_model import TrainedModel
from ..records import Prompt, Rollout

Tokens = tuple[Tensor, Tensor]
"""A response: its tokens int64 [R] and their log-probabilities float32 [R]."""


def generate_shared(
    engine: TrainedModel,
    ranks: Ranks,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    version: int,
) -> list[Rollout]:
    """`sampling.answers_per_prompt` responses to each prompt, in the order of the prompts, on every rank; at
    temperature 0 of the likeliest tokens.

    A collective. Draws from torch's global random generator of each rank.
    """
    repeated = [prompt for prompt in prompts for _ in range(sampling.answers_per_prompt)]
    mine = range(ranks.rank, len(repeated), ranks.world)
    # Prompts of similar length meet in a batch, which keeps the padding on the left short.
    order = sorted(mine, key=lambda i: len(repeated[i].tokens))
    longest = len(repeated[order[-1]].tokens) + sampling.max_new_tokens if order else 1
    size = max(1, engine.micro_batch_tokens // longest)
    responses: dict[int, Tokens] = {}
    with engine.gathered() as model, _sampling_of_the_job_alone(model) as own, torch.no_grad():
        ends = end_tokens(tokenizer, own, sampling)
        model.eval()
        for at in range(0, len(order), size):
            rows = order[at : at + size]
            batch = _generate(
                model, [repeated[i] for i in rows], sampling, ends, tokenizer.pad_token_id, engine.device
            )
            responses |= dict(zip(rows, batch, strict=True))
    return _rollouts(ranks.gather(_packed(responses)), repeated, ends, version)


@contextmanager
def _sampling_of_the_job_alone(model: Any) -> Iterator[GenerationConfig]:
    """`generate` takes what a call leaves open, such as penalties, from the model repository: that is put away, and
    given to whoever wants to read it."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield own
    finally:
        model.generation_config = own


def _generate(
    model: Any,
    prompts: list[Prompt],
    sampling: Sampling,
    ends: Sequence[int],
    pad: int,
    device: torch.device,
) -> list[Tokens]:
    """One response to each prompt, the end token included."""
    width = max(len(p.tokens) for p in prompts)
    ids = torch.tensor([[pad] * (width - len(p.tokens)) + list(p.tokens) for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p.tokens)) + [1] * len(p.tokens) for p in prompts], device=device)
    config = GenerationConfig(
        do_sample=sampling.temperature > 0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_new_tokens=sampling.min_new_tokens,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=list(ends),
        pad_token_id=pad,
    )
    recorder = _Recorder()
    processors = LogitsProcessorList([*_warpers(sampling), recorder])
    out = model.generate(ids, attention_mask=mask, generation_config=config, logits_processor=processors)
    tokens = out[:, width:].cpu()
    logprobs = recorder.logprobs(out)
    ended = torch.isin(tokens, torch.tensor(ends))
    lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, tokens.shape[1])
    return [(t[:n], p[:n]) for t, p, n in zip(tokens, logprobs, lengths.tolist(), strict=True)]


def _warpers(sampling: Sampling) -> Iterator[LogitsProcessor]:
    """Logits processors that `generate` makes of temperature, top-k and top-p, in its order; its own would come after
    the recorder."""
    if sampling.temperature not in (0, 1):
        yield TemperatureLogitsWarper(sampling.temperature)
    if sampling.top_k > 0:
        yield TopKLogitsWarper(sampling.top_k)
    if sampling.top_p < 1:
        yield TopPLogitsWarper(sampling.top_p)


class _Recorder(LogitsProcessor):
    """Log-probabilities of the sampled tokens, taken as generation goes on: one step's logits are held, never all."""

    def __init__(self) -> None:
        self._last: Tensor | None = None
        self._found: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`scores` float [n, V], processed as they will be sampled from, given the tokens so far, int64 [n, T]."""
        self._take(input_ids)
        self._last = scores.float().log_softmax(-1)
        return scores

    def logprobs(self, sequences: Tensor) -> Tensor:
        """Of each new token of the whole `sequences`: float32 [n, new tokens] on the CPU."""
        self._take(sequences)
        return torch.stack(self._found, dim=1).cpu()

    def _take(self, input_ids: Tensor) -> None:
        if self._last is not None:
            self._found.append(self._last.gather(-1, input_ids[:, -1:]).squeeze(-1))


def _packed(responses: dict[int, Tokens]) -> dict[str, Tensor]:
    tokens, logprobs = [t for t, _ in responses.values()], [p for _, p in responses.values()]
    return {
        "rows": torch.tensor(list(responses), dtype=torch.int64),
        "lengths": torch.tensor([len(t) for t in tokens], dtype=torch.int64),
        "tokens": torch.cat(tokens) if tokens else torch.zeros(0, dtype=torch.int64),
        "logprobs": torch.cat(logprobs) if logprobs else torch.zeros(0),
    }


def _rollouts(
    everyone: list[dict[str, Tensor]], prompts: list[Prompt], ends: Sequence[int], version: int
) -> list[Rollout]:
    found: dict[int, Rollout] = {}
    for arrays in everyone:
        lengths = arrays["lengths"].tolist()
        parts = zip(
            arrays["rows"].tolist(),
            arrays["tokens"].split(lengths),
            arrays["logprobs"].split(lengths),
            strict=True,
        )
        for row, tokens, logprobs in parts:
            response = array("i", tokens.tolist())
            found[row] = Rollout(
                prompt=prompts[row],
                tokens=response,
                logprobs=array("f", logprobs.tolist()),
                versions=array("i", [version]) * len(response),
                finished=response[-1] in ends,
            )
    return [found[i] for i in range(len(prompts))]
