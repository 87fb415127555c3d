"""Scores of responses: a reward model, reward functions, or several of them with weights."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_api.rows import PromptRow

from ..batches import sequence_scores, token_scores
from ..data.chat import special_tokens
from ..data.encode import encode_sampled
from ..models.inference import Forward, infer
from ..records import Sequences
from .messages import PartReport, ScoreReport
from .samples import Failure, Sample, Scorer, score_all

MODEL = "model"
"""The reward model's name in the metrics."""


@dataclass(frozen=True)
class TokenScorer:
    """A token-classification model with one output, over the policy's own tokens: a reward for each of them."""

    forward: Forward

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:  # noqa: ARG002
        """float32 [A], response-aligned."""
        return infer(self.forward, sequences, token_scores, sequences.response_lengths)


@dataclass(frozen=True)
class ModelScorer:
    """A sequence-classification model over tokens; with a vocabulary of its own, over the text tokenized again."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    own_tokenizer: PreTrainedTokenizerBase
    token_budget: int

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        """float32 [N]."""
        if self.own_tokenizer.get_vocab() != self.tokenizer.get_vocab():
            sequences = self._tokenized_again(sequences, rows)
        sizes = torch.ones(len(sequences), dtype=torch.int64)
        pad = self.own_tokenizer.pad_token_id or 0
        return infer(Forward(self.model, self.token_budget, pad), sequences, sequence_scores, sizes)

    def _tokenized_again(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Sequences:
        """An answer that was cut off gets no end token here either; what is too long loses its beginning."""
        own, config = self.own_tokenizer, self.model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None) or 0  # [-0:] is all of it
        ends, pairs = special_tokens(self.tokenizer), []
        for i, (prompt, response, row) in enumerate(
            zip(*texts(sequences, self.tokenizer), rows, strict=True)
        ):
            # Its own template renders the conversation, whose roles the plain text has lost.
            conversation = bool(own.chat_template) and isinstance(row.get("prompt"), list)
            asked = PromptRow.model_validate(row).prompt if conversation else prompt
            ended = int(sequences.row(i)[-1]) in ends
            tokens = encode_sampled(own, asked, response, ended=ended)[-positions:]
            # The score is of the whole: where the answer begins makes no difference.
            pairs.append((tokens[:1], tokens[1:]))
        return Sequences.pack(pairs)


ModelScore = Callable[[Sequences, Sequence[Mapping[str, Any]]], Tensor]


@dataclass(frozen=True)
class Function:
    """A reward function: its `name` in the metrics, and how often a response that failed is tried again."""

    name: str
    weight: float
    retries: int
    scorer: Scorer


@dataclass(frozen=True)
class Rewards:
    """Sum of weight x score over the reward model and the functions, all of which work at the same time.

    `model`, with its weight, is None where no model scores; functions have `seconds` for one batch, all retries in it.
    """

    tokenizer: PreTrainedTokenizerBase
    seconds: float
    functions: Sequence[Function]
    model: tuple[float, ModelScore] | None = None

    async def score(
        self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[Tensor, ScoreReport]:
        """float32 [N], or [A] where the model scores tokens, in units of reward: NaN where a response has no score,
        which the report gives the reason of. Raises InvalidJob where the job itself is at fault."""
        prompts, responses = texts(sequences, self.tokenizer)
        samples = [Sample(*sample) for sample in zip(prompts, responses, rows, strict=True)]
        calls = [self._ask(function, samples) for function in self.functions]
        if self.model is not None:
            calls.append(self._infer(self.model[1], sequences, rows))
        found = await asyncio.gather(*calls)

        weights = [f.weight for f in self.functions] + ([self.model[0]] if self.model is not None else [])
        total = torch.stack([weight * scores for weight, (scores, _, _) in zip(weights, found, strict=True)])
        failures: dict[int, str] = {}
        for _, _, why in found:
            failures |= why
        return total.sum(0), ScoreReport(
            failures=failures, parts={name: part for _, parts, _ in found for name, part in parts.items()}
        )

    async def _ask(self, function: Function, samples: Sequence[Sample]) -> "_Scored":
        began = time.perf_counter()
        results = await score_all(function.scorer, samples, retries=function.retries, seconds=self.seconds)
        why = {i: f"{function.name}: {r.reason}" for i, r in enumerate(results) if isinstance(r, Failure)}
        scores = torch.tensor([math.nan if isinstance(r, Failure) else r for r in results])
        return _scored(function.name, scores, why, began)

    async def _infer(
        self, model: ModelScore, sequences: Sequences, rows: Sequence[Mapping[str, Any]]
    ) -> "_Scored":
        began = time.perf_counter()
        scores = await asyncio.to_thread(model, sequences, rows)
        owner = torch.arange(len(sequences))
        if isinstance(model, TokenScorer):
            owner = torch.repeat_interleave(owner, sequences.response_lengths)
        bad = owner[~scores.isfinite()].unique()
        scores = scores.masked_fill(torch.isin(owner, bad), math.nan)
        why = dict.fromkeys(bad.tolist(), f"{MODEL}: its score is not finite")
        return _scored(MODEL, scores, why, began)


_Scored = tuple[Tensor, dict[str, PartReport], dict[int, str]]


def _scored(name: str, scores: Tensor, why: dict[int, str], began: float) -> _Scored:
    total, seconds = float(scores.double().nansum()), time.perf_counter() - began
    return scores, {name: PartReport(total=total, failed=len(why), seconds=seconds)}, why


def texts(sequences: Sequences, tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[str]]:
    """The prompts and the answers as text, without special tokens."""
    prompts, answers = list[str](), list[str]()
    for i, length in enumerate(sequences.prompt_lengths.tolist()):
        row = sequences.row(i)
        for texts_of, part in ((prompts, row[:length]), (answers, row[length:])):
            text = tokenizer.decode(part, skip_special_tokens=True)
            assert isinstance(text, str), "one sequence gives one text"
            texts_of.append(text)
    return prompts, answers
