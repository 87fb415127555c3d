"""Responses generated in the trainer itself, by Hugging Face's `generate`, spread over the ranks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase

from rlhf_api.spec import Sampling

from ..comms.ranks import Ranks
from ..data import end_tokens
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
    """`sampling.answers_per_prompt` responses to each prompt, in the order of the prompts, on every rank.

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
        ends = end_tokens(tokenizer, own)
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
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(0, sampling.top_k),
        min_new_tokens=sampling.min_new_tokens,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=list(ends),
        pad_token_id=pad,
        return_dict_in_generate=True,
        output_scores=True,
    )
    out = model.generate(ids, attention_mask=mask, generation_config=config)
    tokens = out.sequences[:, width:].cpu()
    scores = torch.stack([s.float() for s in out.scores], dim=1)
    logprobs = scores.log_softmax(-1).gather(-1, tokens.to(device)[..., None]).squeeze(-1).cpu()
    ended = torch.isin(tokens, torch.tensor(ends))
    lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, tokens.shape[1])
    return [(t[:n], p[:n]) for t, p, n in zip(tokens, logprobs, lengths.tolist(), strict=True)]


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
            response = tuple(tokens.tolist())
            found[row] = Rollout(
                prompt=prompts[row],
                tokens=response,
                logprobs=tuple(logprobs.tolist()),
                versions=(version,) * len(response),
                finished=response[-1] in ends,
            )
    return [found[i] for i in range(len(prompts))]
