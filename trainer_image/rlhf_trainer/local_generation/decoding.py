"""Decoding loop for Hugging Face's `generate`: one prefill per prompt, whatever the number of its responses, and a
batch that shrinks as responses end."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig

from ..data.stop_strings import StopStrings
from ..process import progress
from .growing_cache import grow_in_place
from .processors import Penalized, draw, with_mask

CACHES = ("past_key_values", "cache_params")
"""Arguments in which Transformers' models take their `Cache`."""


class Decoded(NamedTuple):
    """n responses of R tokens and less, on the CPU: int64 `tokens` [n, R], their log-probabilities in nats, float32
    `logprobs` [n, R], and the other tokens of their sampling masks, int64 `kept` [n, R, K] padded with -1; int64
    `lengths` [n], behind which nothing is meant. `finished`, bool [n]: ended by an end token or stop string."""

    tokens: Tensor
    logprobs: Tensor
    kept: Tensor
    lengths: Tensor
    finished: Tensor


@dataclass(frozen=True)
class Decoder:
    """The loop, called by `generate(custom_generate=...)` with the cache, masks and processors that Transformers makes
    for a batch of different prompts.

    On the model's device, int64: `copies` [n], the prompt of each response, and `ends`, the tokens that end one.
    `prompts`: the tokens of each response's prompt, without padding. `most`: tokens of a sampling mask, see
    `with_mask`. Returns early once `stop` is set. Where a model's state is in no `Cache` of Transformers', each
    response has a prefill of its own, and ended ones stay in the batch.
    """

    copies: Tensor
    ends: Tensor
    prompts: Sequence[Sequence[int]]
    stops: StopStrings
    penalized: Penalized | None
    most: int
    stop: threading.Event

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Callable[[Tensor, Tensor], Tensor],
        stopping_criteria: object,  # noqa: ARG002  the loop's own
        generation_config: GenerationConfig,
        **arguments: Any,
    ) -> Decoded:
        """Responses to the prompts `input_ids`, int64 [P, T], padded on the left."""
        width, count = input_ids.shape[1], len(self.copies)
        room, least = generation_config.max_length - width, generation_config.min_new_tokens or 0
        cache = next((arguments[name] for name in CACHES if isinstance(arguments.get(name), Cache)), None)
        state = _State(input_ids, arguments, cache, self.penalized)
        rows = torch.arange(count, device=input_ids.device)  # the response in each row of the batch
        if cache is None:
            state.take(self.copies)
            logits = state.forward(model, width)
        else:
            grow_in_place(cache)
            logits = state.forward(model, width)[self.copies]
            state.take(self.copies)
        lengths, finished = torch.full_like(rows, room), torch.zeros_like(rows, dtype=torch.bool)
        steps, written = [], [list[int]() for _ in range(count)]
        with model._optimize_model_for_decode():
            for length in range(1, room + 1):
                progress.sign()
                logprobs = logits_processor(state.input_ids, state.penalize(logits.float())).log_softmax(-1)
                tokens = draw(logprobs) if generation_config.do_sample else logprobs.argmax(-1)
                steps.append((rows, tokens, *with_mask(logprobs, tokens, self.most)))
                state.append(tokens)
                ended = torch.isin(tokens, self.ends)
                if self.stops.strings:
                    completed = self._complete_stop_strings(rows.tolist(), tokens.tolist(), written)
                    if length > least:
                        ended |= torch.tensor(completed, device=ended.device)
                new = ended & ~finished[rows]
                lengths[rows[new]], finished[rows[new]] = length, True
                if length == room or self.stop.is_set() or bool(finished.all()):
                    break
                if cache is not None and bool(ended.any()):
                    going = _closed_up(ended)
                    state.take(going)
                    rows = rows[going]
                logits = state.forward(model, 1)
        return _assembled(steps, lengths.clamp(max=len(steps)), finished)

    def _complete_stop_strings(
        self, rows: Sequence[int], tokens: Sequence[int], written: Sequence[list[int]]
    ) -> list[bool]:
        """Appends each row's token to its response in `written`; true where that completes a stop string."""
        for row, token in zip(rows, tokens, strict=True):
            written[row].append(token)
        return [self.stops.ending(self.prompts[row], written[row]) is not None for row in rows]


@dataclass
class _State:
    """A batch of n rows between two tokens: int64 `input_ids` [n, T], and the `arguments` of the model."""

    input_ids: Tensor
    arguments: dict[str, Any]
    cache: Any
    penalized: Penalized | None

    def take(self, index: Tensor) -> None:
        """Row i becomes what row `index[i]` was."""
        if self.cache is not None:
            self.cache.reorder_cache(index)
        count = len(self.input_ids)
        for name, value in self.arguments.items():
            # Masks and positions: [n, T], or with a dimension before.
            if isinstance(value, Tensor) and value.ndim > 1 and value.shape[-2] == count:
                self.arguments[name] = value.index_select(-2, index)
        self.input_ids = self.input_ids[index]
        if self.penalized is not None:
            self.penalized = self.penalized.take(index)

    def forward(self, model: Any, new: int) -> Tensor:
        """Logits [n, V] after the last of the `new` tokens that the cache lacks."""
        inputs = model.prepare_inputs_for_generation(
            self.input_ids,
            next_sequence_length=new if self.arguments.get("use_cache") else None,
            is_first_iteration=self.input_ids.shape[1] == new,
            **self.arguments,
        )
        outputs = model(**inputs, return_dict=True)
        self.arguments = model._update_model_kwargs_for_generation(outputs, self.arguments)
        logits: Tensor = outputs.logits[:, -1]
        return logits

    def penalize(self, scores: Tensor) -> Tensor:
        return scores if self.penalized is None else self.penalized(self.input_ids, scores)

    def append(self, tokens: Tensor) -> None:
        self.input_ids = torch.cat([self.input_ids, tokens[:, None]], dim=1)


def _closed_up(ended: Tensor) -> Tensor:
    """The rows that go on, those from the end in the places of ended ones, so that few move: bool [n] -> int64."""
    going = (~ended).nonzero().flatten()
    count = len(going)
    rows = torch.arange(count, device=ended.device)
    rows[ended[:count]] = going[going >= count]
    return rows


def _assembled(
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor]], lengths: Tensor, finished: Tensor
) -> Decoded:
    """Responses of all steps, each with the tokens of the rows that were in its batch."""
    _, tokens, logprobs, kept_tokens = steps[0]
    count, most = len(lengths), len(steps)
    arrays = [first.new_zeros(count, most, *first.shape[1:]) for first in (tokens, logprobs, kept_tokens)]
    for at, (rows, *values) in enumerate(steps):
        for whole, value in zip(arrays, values, strict=True):
            whole[rows, at] = value
    tokens, logprobs, kept_tokens = (whole.cpu() for whole in arrays)
    return Decoded(tokens, logprobs, kept_tokens, lengths.cpu(), finished.cpu())
