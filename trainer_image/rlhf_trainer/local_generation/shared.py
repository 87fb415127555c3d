"""Generation in the trainer itself, spread over the ranks."""

import threading
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.sampling_request import SamplingRequest
from ..dispatch.roster import Stopped
from ..models.trained_model import TrainedModel
from ..ranks.ranks import Ranks
from ..tensors.records import Prompt, Rollout
from .sampler import Sampled, shared_sampler


def generate_shared(
    engine: TrainedModel,
    ranks: Ranks,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    request: SamplingRequest,
    version: int,
    stop: threading.Event,
) -> list[Rollout]:
    """`sampling.responses_per_prompt` responses to each prompt, in the order of the prompts, on every rank; greedy at
    temperature 0.

    A collective. Draws from torch's global random generator of each rank.

    Raises Stopped, on every rank, if `stop` was set meanwhile on any.
    """
    sampling = request.sampling
    repeated = [prompt for prompt in prompts for _ in range(sampling.responses_per_prompt)]
    mine = range(ranks.rank, len(repeated), ranks.world)
    with shared_sampler(engine, tokenizer, sampling, stop) as sampler:
        sampled = sampler.sample([repeated[i] for i in mine], request)
    if ranks.any(stop.is_set()):
        raise Stopped("stopped while the trainer generated")
    return _rollouts(ranks.gather(_packed(dict(zip(mine, sampled, strict=True)))), repeated, version)


def _packed(responses: dict[int, Sampled]) -> dict[str, Tensor]:
    sampled = list(responses.values())
    tokens, logprobs = [r.tokens for r in sampled], [r.logprobs for r in sampled]
    none = torch.zeros(0, dtype=torch.int32)
    return {
        "rows": torch.tensor(list(responses), dtype=torch.int64),
        "lengths": torch.tensor([len(t) for t in tokens], dtype=torch.int64),
        "tokens": torch.cat(tokens) if tokens else torch.zeros(0, dtype=torch.int64),
        "logprobs": torch.cat(logprobs) if logprobs else torch.zeros(0),
        "counts": torch.cat([none, *(r.counts for r in sampled)]),
        "kept": torch.cat([none, *(r.kept for r in sampled)]),
        "finished": torch.tensor([r.finished for r in sampled], dtype=torch.bool),
        "sizes": torch.tensor([[len(r.counts), len(r.kept)] for r in sampled], dtype=torch.int64).view(-1, 2),
    }


def _rollouts(everyone: list[dict[str, Tensor]], prompts: list[Prompt], version: int) -> list[Rollout]:
    rollouts: dict[int, Rollout] = {}
    for arrays in everyone:
        lengths = arrays["lengths"].tolist()
        parts = zip(
            arrays["rows"].tolist(),
            arrays["tokens"].split(lengths),
            arrays["logprobs"].split(lengths),
            arrays["counts"].split(arrays["sizes"][:, 0].tolist()),
            arrays["kept"].split(arrays["sizes"][:, 1].tolist()),
            arrays["finished"].tolist(),
            strict=True,
        )
        for row, tokens, logprobs, counts, kept_tokens, finished in parts:
            response = array("i", tokens.tolist())
            rollouts[row] = Rollout(
                prompt=prompts[row],
                tokens=response,
                logprobs=array("f", logprobs.tolist()),
                versions=array("i", [version]) * len(response),
                finished=finished,
                kept_counts=array("i", counts.tolist()),
                kept=array("i", kept_tokens.tolist()),
            )
    return [rollouts[i] for i in range(len(prompts))]
