"""Rewards of responses: weighted sums of reward functions, and of reward models' scores."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, compress
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_api.dataset.messages import Text
from rlhf_api.dataset.rows import PromptRow
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.numbers import LARGEST_SCORE
from rlhf_api.sections.reward import MODEL

from ..data.encode import encode_sampled
from ..data.stop_strings import StopStrings
from ..data.text import continued_text, token_texts
from ..maths.outputs import sequence_scores, token_scores
from ..models.forward.inference import Forward, infer
from ..tensors.records import Sequences
from .call_queue import CallQueue
from .messages import PartReport, ScoreReport
from .samples import Failure, Result, Sample, Scorer


@dataclass(frozen=True)
class TokenScorer:
    """A token-classification model with one output, over the policy's own tokens: one reward per token."""

    forward: Forward

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:  # noqa: ARG002
        """float32 [A], response-aligned."""
        return infer(self.forward, sequences, token_scores, sequences.response_lengths)


SequenceScores = Callable[[Sequences], Tensor]
"""Scores of whole sequences: float32 [N]."""


def forward_scores(model: PreTrainedModel, token_budget: int, pad_token_id: int) -> SequenceScores:
    """Forward passes of a sequence-classification model, at most `token_budget` tokens each."""

    def scores(sequences: Sequences) -> Tensor:
        sizes = torch.ones(len(sequences), dtype=torch.int64)
        return infer(Forward(model, token_budget, pad_token_id), sequences, sequence_scores, sizes)

    return scores


@dataclass(frozen=True)
class ModelScorer:
    """A sequence-classification model over the policy's tokens; with a vocabulary of its own, over the decoded text
    tokenized again, cut to its last `positions` tokens (0: no limit). `variables`: the manifest's, for its
    chat template."""

    scores: SequenceScores
    positions: int
    tokenizer: PreTrainedTokenizerBase
    own_tokenizer: PreTrainedTokenizerBase
    stop: Sequence[str] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        """float32 [N]."""
        if self.own_tokenizer.get_vocab() != self.tokenizer.get_vocab():
            sequences = self._tokenized_again(sequences, rows)
        return self.scores(sequences)

    def _tokenized_again(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Sequences:
        """The sequences tokenized again with the model's own vocabulary. A response that was cut off, which its rollout
        says, gets no end token here either; a sequence that is too long loses its start. One with branches is its last
        one, whose prompt is not the row's."""
        assert sequences.finished is not None, "what is scored was sampled"
        own, pairs, last = self.own_tokenizer, [], sequences.last_branches()
        branched, lengths = [any(sequences.branches_of(i) or ()) for i in range(len(last))], list[int]()
        for i, length in enumerate(last.prompt_lengths.tolist()):
            lengths.append(length + (last.sampled_of(i) or []).index(True) if branched[i] else length)
        whole = replace(last, prompt_lengths=torch.tensor(lengths), sampled=None)
        for prompt, response, row, ended, is_branch in zip(
            *texts(whole, self.tokenizer, self.stop), rows, sequences.finished.tolist(), branched, strict=True
        ):
            # Its own template renders the conversation, whose roles the decoded text has lost.
            conversation = bool(own.chat_template) and isinstance(row.get("prompt"), list) and not is_branch
            own_prompt: Text = prompt
            arguments: Mapping[str, Any] = {}
            if conversation:
                made = PromptRow.model_validate(row)
                own_prompt, arguments = made.prompt, made.template_arguments(self.variables)
            tokens = encode_sampled(own, own_prompt, response, arguments, ended=ended)
            tokens = tokens[-self.positions :]  # [-0:] keeps all
            # The score is of the whole sequence: the split into prompt and response does not matter.
            pairs.append((tokens[:1], tokens[1:]))
        return Sequences.pack(pairs)


ModelScore = Callable[[Sequences, Sequence[Mapping[str, Any]]], Tensor]


@dataclass(frozen=True)
class Function:
    """A reward function: `name` in the metrics, and the number of retries for a failed response."""

    name: str
    weight: float
    retries: int
    scorer: Scorer


@dataclass(frozen=True)
class Functions:
    """Weighted sum of functions, services and programs, of any number of batches at once.

    A response has `seconds` from the begin of its first call on, retries included. With `fine_grained` tokens may have
    scores, and the score of a whole response goes to its last token. `stop`: stop strings, which are removed from the
    text.
    """

    tokenizer: PreTrainedTokenizerBase
    seconds: float
    functions: Sequence[Function]
    fine_grained: bool = False
    stop: Sequence[str] = ()

    @cached_property
    def _queues(self) -> list[CallQueue]:
        return [CallQueue(f.scorer, retries=f.retries, seconds=self.seconds) for f in self.functions]

    async def score(
        self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[Tensor, ScoreReport]:
        """Sums before bias, scale and clip, float64 [N], or [A] with `fine_grained`; NaN for responses without a score,
        whose reasons are in the report. Raises InvalidJob if the job itself is at fault."""
        prompts, responses = texts(sequences, self.tokenizer, self.stop)
        tokens: Sequence[list[str] | None] = [None] * len(sequences)
        if self.fine_grained:
            tokens = texts_of_tokens(sequences, self.tokenizer, self.stop)
        samples = [Sample(*sample) for sample in zip(prompts, responses, rows, tokens, strict=True)]
        scored = await asyncio.gather(*(queue.score(samples) for queue in self._queues))
        totals, failures, parts = list[Tensor](), dict[int, str](), dict[str, PartReport]()
        for function, (results, seconds) in zip(self.functions, scored, strict=True):
            each = [
                _of_tokens(r, s) if s.tokens else [_score_of_response(r)]
                for r, s in zip(results, samples, strict=True)
            ]
            scores = torch.tensor([score for of_one in each for score in of_one])
            own_failures = {
                i: f"{function.name}: {r.reason}" for i, r in enumerate(results) if isinstance(r, Failure)
            }
            totals.append(function.weight * scores.double())
            failures |= own_failures
            of_responses = [sum(of_one) for of_one in each]
            parts[function.name] = part_report(of_responses, own_failures, seconds)
        return torch.stack(totals).sum(0), ScoreReport(failures=failures, parts=parts)


@dataclass(frozen=True)
class WeightedModel:
    """A reward model's scores, before bias, scale and clip; of tokens with `fine_grained`."""

    weight: float
    model: ModelScore
    fine_grained: bool = False
    name: str = MODEL
    """Name in the metrics."""

    def score(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ScoreReport]:
        """As `Functions.score`; a score that is not finite is none."""
        began = time.perf_counter()
        scores = self.model(sequences, rows)
        owner = torch.arange(len(sequences))
        if self.fine_grained:
            owner = torch.repeat_interleave(owner, sequences.response_lengths)
        bad = owner[~scores.isfinite()].unique()
        scores = scores.masked_fill(torch.isin(owner, bad), math.nan)
        failures = dict.fromkeys(bad.tolist(), f"{self.name}: its score is not finite")
        totals = torch.zeros(len(sequences)).index_add(0, owner, scores).tolist()
        report = part_report(totals, failures, time.perf_counter() - began)
        return self.weight * scores.double(), ScoreReport(failures=failures, parts={self.name: report})


@dataclass(frozen=True)
class WeightedModels:
    """The sum of reward models, which score a batch one after another."""

    models: Sequence[WeightedModel]

    def score(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ScoreReport]:
        """As `Functions.score`: a response that one of them does not score has no score."""
        scored = [model.score(sequences, rows) for model in self.models]
        failures, parts = dict[int, str](), dict[str, PartReport]()
        for _, report in scored:
            failures |= report.failures
            parts |= report.parts
        totals = torch.stack([scores for scores, _ in scored]).sum(0)
        return totals, ScoreReport(failures=failures, parts=parts)


def to_float32(totals: Tensor) -> Tensor:
    """Totals float64, NaN for responses without a score, as float32, same shape. Raises InvalidJob for one that is too
    large, which would be infinite there."""
    if bool((totals.abs() > LARGEST_SCORE).any()):
        largest = float(totals[totals.abs().nan_to_num(0.0).argmax()])
        message = f"the total of a response must not exceed {LARGEST_SCORE:.2g}; got {largest:.3g}; lower the weights"
        raise InvalidJob([Problem("spec.reward", f"{message} or scale, or set clip")])
    return totals.float()


def _score_of_response(result: Result) -> float:
    assert not isinstance(result, Sequence), "only tokens that are known have scores"
    return math.nan if isinstance(result, Failure) else result


def _of_tokens(result: Result, sample: Sample) -> Sequence[float]:
    """A score for each token of a response; a score of the whole goes to the last token."""
    assert sample.tokens is not None
    if isinstance(result, Sequence):
        return result
    if isinstance(result, Failure):
        return [math.nan] * len(sample.tokens)
    return [*[0.0] * (len(sample.tokens) - 1), result]


def part_report(scores: Sequence[float], failures: Mapping[int, str], seconds: float) -> PartReport:
    """The report of one reward's scores of responses, before its weight."""
    known = [None if math.isnan(score) else score for score in scores]
    total = math.fsum(score for score in known if score is not None)
    return PartReport(total=total, failed=len(failures), seconds=seconds, scores=tuple(known))


def texts_of_tokens(
    sequences: Sequences, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()
) -> list[list[str]]:
    """The text that each response token adds; a response's texts joined are its text as in `texts`, where it has no
    context tokens: stop strings at the end are removed."""
    response_texts, stops = [], StopStrings(tokenizer, stop)
    for i, (prompt, response) in enumerate(_token_ids(sequences)):
        sampled = sequences.sampled_of(i)
        pieces = without(token_texts(tokenizer, prompt, response), len(stops.ending(prompt, response) or ""))
        response_texts.append(pieces if sampled is None else list(compress(pieces, sampled)))
    return response_texts


def without(pieces: list[str], characters: int) -> list[str]:
    """Removes the last `characters` characters from the pieces of a text."""
    left = len("".join(pieces)) - characters
    ends = accumulate(map(len, pieces))
    return [piece[: max(0, left - end + len(piece))] for piece, end in zip(pieces, ends, strict=True)]


def texts(
    sequences: Sequences, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The prompts and the responses as text, without special tokens, and without the stop string at the end."""
    prompts, responses, stops = list[str](), list[str](), StopStrings(tokenizer, stop)

    @cache  # several responses have the same prompt
    def text_of_prompt(prompt: tuple[int, ...]) -> str:
        return continued_text(tokenizer, (), prompt)

    for prompt, response in _token_ids(sequences):
        prompts.append(text_of_prompt(tuple(prompt)))
        responses.append(stops.text(prompt, response))
    return prompts, responses


def _token_ids(sequences: Sequences) -> Iterator[tuple[list[int], list[int]]]:
    """Prompt and response of each sequence."""
    rows = sequences.tokens.split(sequences.lengths.tolist())
    for row, length in zip(rows, sequences.prompt_lengths.tolist(), strict=True):
        tokens = row.tolist()
        yield tokens[:length], tokens[length:]
