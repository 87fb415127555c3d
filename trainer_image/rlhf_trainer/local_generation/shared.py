"""Generation in the trainer itself, by Hugging Face's `generate`, spread over the ranks."""

import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase

from rlhf_api.sections.evaluation import NO_PENALTIES, Penalties
from rlhf_api.sections.sampling import Sampling

from ..data.encode import end_tokens
from ..data.stop_strings import StopStrings
from ..dispatch.roster import Stopped
from ..models.pretrained.load import padding_id
from ..models.trained_model import TrainedModel
from ..ranks.ranks import Ranks
from ..tensors.records import Prompt, Rollout
from .decoding import Decoded, Decoder
from .processors import Penalized, warpers


class Sampled(NamedTuple):
    """A response: tokens int64 [R], their log-probabilities float32 [R], and their sampling mask as in `Kept`: int32
    `counts` [R] and `kept` tokens, both empty if no mask is replayed. `finished`: it ended with an end token or stop
    string."""

    tokens: Tensor
    logprobs: Tensor
    counts: Tensor
    kept: Tensor
    finished: bool


def generate_shared(
    engine: TrainedModel,
    ranks: Ranks,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    version: int,
    stop: threading.Event,
    penalties: Penalties = NO_PENALTIES,
    *,
    masks: bool = True,
) -> list[Rollout]:
    """`sampling.responses_per_prompt` responses to each prompt, in the order of the prompts, on every rank; greedy at
    temperature 0. `masks`: with their sampling masks, where training replays them.

    A collective. Draws from torch's global random generator of each rank.

    Raises Stopped, on every rank, if `stop` was set meanwhile on any.
    """
    repeated = [prompt for prompt in prompts for _ in range(sampling.responses_per_prompt)]
    mine = range(ranks.rank, len(repeated), ranks.world)
    # Batches of similar prompt lengths need little left padding.
    order = sorted(mine, key=lambda i: len(repeated[i].tokens))
    longest = len(repeated[order[-1]].tokens) + sampling.max_new_tokens if order else 1
    size = max(1, engine.micro_batch_tokens // longest)
    responses: dict[int, Sampled] = {}
    with engine.gathered() as model, sampling_of_the_job_alone(model) as own, torch.no_grad():
        ends, stops = end_tokens(tokenizer, own, sampling), StopStrings(tokenizer, sampling.stop)
        model.eval()
        for at in range(0, len(order), size):
            if stop.is_set():
                break
            rows = order[at : at + size]
            batch = generate_batch(
                model,
                [repeated[i] for i in rows],
                sampling,
                penalties,
                ends,
                stops,
                padding_id(tokenizer),
                stop,
                masks=masks,
            )
            responses |= dict(zip(rows, batch, strict=True))
    if ranks.any(stop.is_set()):
        raise Stopped("stopped while the trainer generated")
    return _rollouts(ranks.gather(_packed(responses)), repeated, version)


@contextmanager
def sampling_of_the_job_alone(model: Any) -> Iterator[GenerationConfig]:
    """Hides the model repository's generation configuration, from which `generate` would take defaults such as
    penalties; yields it."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield own
    finally:
        model.generation_config = own


def generate_batch(
    model: Any,
    prompts: list[Prompt],
    sampling: Sampling,
    penalties: Penalties,
    ends: Sequence[int],
    stops: StopStrings,
    pad: int,
    stop: threading.Event,
    *,
    masks: bool,
) -> list[Sampled]:
    """One response to each prompt, with its end token; partial ones if `stop` was set."""
    unique = {tokens: i for i, tokens in enumerate(dict.fromkeys(p.tokens for p in prompts))}
    width, device = max(map(len, unique)), model.device
    ids = torch.tensor([[pad] * (width - len(tokens)) + list(tokens) for tokens in unique], device=device)
    mask = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in unique], device=device)
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
    decoder = Decoder(
        copies=torch.tensor([unique[p.tokens] for p in prompts], device=device),
        ends=torch.tensor(ends, device=device),
        prompts=[p.tokens for p in prompts],
        stops=stops,
        penalized=None if penalties == NO_PENALTIES else Penalized(penalties, ids, mask),
        most=sampling.mask_size if masks else 0,
        stop=stop,
    )
    decoded: Decoded = model.generate(
        ids,
        attention_mask=mask,
        generation_config=config,
        logits_processor=LogitsProcessorList(warpers(sampling)),
        custom_generate=decoder,
    )
    return [
        Sampled(tokens[:n], logprobs[:n], *_packed_mask(kept_tokens[:n]), finished)
        for tokens, logprobs, kept_tokens, n, finished in zip(
            *decoded[:3], decoded.lengths.tolist(), decoded.finished.tolist(), strict=True
        )
    ]


def _packed_mask(padded: Tensor) -> tuple[Tensor, Tensor]:
    """[R, K] padded with -1 -> counts and tokens, both empty for K = 0."""
    real = padded >= 0
    counts = real.sum(1) if padded.shape[1] else real.new_zeros(0)
    return counts.int(), padded[real].int()


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
