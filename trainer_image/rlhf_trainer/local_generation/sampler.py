"""Samples responses in the trainer itself, by Hugging Face's `generate`, in batches."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase

from rlhf_api.sections.evaluation import NO_PENALTIES
from rlhf_api.sections.sampling import Sampling

from ..data.encode import end_tokens
from ..data.sampling_request import SamplingRequest
from ..data.stop_strings import StopStrings
from ..models.pretrained.load import padding_id
from ..models.trained_model import TrainedModel
from ..tensors.images import Images
from ..tensors.packed import to_device
from ..tensors.records import Prompt
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


_NONE = torch.zeros(0, dtype=torch.int32)
NOTHING = Sampled(torch.zeros(0, dtype=torch.int64), torch.zeros(0), _NONE, _NONE, finished=False)
"""What is sampled once the run is to stop."""


@dataclass(frozen=True)
class SharedSampler:
    """Samples with the policy's own weights, gathered on this rank."""

    model: Any
    ends: Sequence[int]
    stops: StopStrings
    pad: int
    micro_batch_tokens: int
    stop: threading.Event

    def sample(self, prompts: Sequence[Prompt], request: SamplingRequest) -> list[Sampled]:
        """One response to each prompt, in their order; partial ones, or none, if `stop` was set meanwhile."""
        # Batches of similar prompt lengths need little left padding.
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens))
        longest = len(prompts[order[-1]].tokens) + request.sampling.max_new_tokens if order else 1
        size, responses = max(1, self.micro_batch_tokens // longest), dict[int, Sampled]()
        for at in range(0, len(order), size):
            if self.stop.is_set():
                break
            rows = order[at : at + size]
            batch = generate_batch(
                self.model,
                [prompts[i] for i in rows],
                request,
                self.ends,
                self.stops,
                self.pad,
                self.stop,
            )
            responses |= dict(zip(rows, batch, strict=True))
        return [responses.get(i, NOTHING) for i in range(len(prompts))]


@contextmanager
def shared_sampler(
    engine: TrainedModel, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, stop: threading.Event
) -> Iterator[SharedSampler]:
    """Gathers the policy's weights on each rank meanwhile; a collective. `sampling`: whose ends and stop strings end a
    response."""
    with engine.gathered() as model, sampling_of_the_job_alone(model) as own, torch.no_grad():
        model.eval()
        ends, stops = end_tokens(tokenizer, own, sampling), StopStrings(tokenizer, sampling.stop)
        yield SharedSampler(model, ends, stops, padding_id(tokenizer), engine.micro_batch_tokens, stop)


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
    request: SamplingRequest,
    ends: Sequence[int],
    stops: StopStrings,
    pad: int,
    stop: threading.Event,
) -> list[Sampled]:
    """One response to each prompt, with its end token; partial ones if `stop` was set."""
    sampling, penalties = request.sampling, request.penalties
    unique = {_inputs(prompt): prompt for prompt in prompts}
    rows, device = {inputs: i for i, inputs in enumerate(unique)}, model.device
    width = max(len(tokens) for tokens, _ in unique)
    ids = torch.tensor([[pad] * (width - len(tokens)) + list(tokens) for tokens, _ in unique], device=device)
    mask = torch.tensor(
        [[0] * (width - len(tokens)) + [1] * len(tokens) for tokens, _ in unique], device=device
    )
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
        copies=torch.tensor([rows[_inputs(prompt)] for prompt in prompts], device=device),
        ends=torch.tensor(ends, device=device),
        prompts=[p.tokens for p in prompts],
        stops=stops,
        penalized=None if penalties == NO_PENALTIES else Penalized(penalties, ids, mask),
        most=sampling.mask_size if request.masks else 0,
        stop=stop,
    )
    decoded: Decoded = model.generate(
        ids,
        attention_mask=mask,
        generation_config=config,
        logits_processor=LogitsProcessorList(warpers(sampling)),
        custom_generate=decoder,
        **_images(model, ids, [*unique.values()]),
    )
    return [
        Sampled(tokens[:n], logprobs[:n], *_packed_mask(kept_tokens[:n]), finished)
        for tokens, logprobs, kept_tokens, n, finished in zip(
            *decoded[:3], decoded.lengths.tolist(), decoded.finished.tolist(), strict=True
        )
    ]


def _inputs(prompt: Prompt) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The key of prompts that the model reads alike: their tokens, and their very images."""
    return prompt.tokens, tuple(map(id, prompt.pictures))


def _images(model: Any, ids: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
    """The images of prompts, whose tokens are the rows of `ids`, as Transformers' models take them."""
    images = Images.of([prompt.pictures for prompt in prompts])
    if images is None:
        return {}
    return {
        "pixel_values": to_device(torch.cat(images.patches), ids.device),
        "image_grid_thw": to_device(images.grids, ids.device),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
    }


def _packed_mask(padded: Tensor) -> tuple[Tensor, Tensor]:
    """[R, K] padded with -1 -> counts and tokens, both empty for K = 0."""
    real = padded >= 0
    counts = real.sum(1) if padded.shape[1] else real.new_zeros(0)
    return counts.int(), padded[real].int()
