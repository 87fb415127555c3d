"""Scores of answers: a reward model, Python functions, or both with weights."""

import importlib
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_api.problems import InvalidJob, Problem, show

from ..batches import sequence_scores, token_scores
from ..models.inference import infer
from ..records import Sequences

Function = Callable[[list[str], list[str], list[Mapping[str, Any]]], Sequence[float]]


def import_function(path: str, where: str) -> Function:
    """The function `module:name`. Raises InvalidJob, naming the field `where`, if it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise InvalidJob(
            [Problem(where, f"{path!r} cannot be imported: {type(error).__name__}: {error}")]
        ) from error
    if not callable(function):
        raise InvalidJob([Problem(where, f"{path!r} is a {type(function).__name__}, not a function")])
    return function  # type: ignore[no-any-return]


@dataclass(frozen=True)
class FunctionScorer:
    """A user's function over texts: `function(prompts, responses, rows) -> one float each`."""

    where: str
    function: Function
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        """float32 [N]. Raises InvalidJob where the function raises, or returns anything but N finite numbers."""
        prompts, responses = texts(sequences, self.tokenizer)
        try:
            returned = self.function(prompts, responses, list(rows))
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            message = f"the function raised {type(error).__name__}: {error} ({at.filename}:{at.lineno})"
            raise InvalidJob([Problem(self.where, message)]) from error
        try:
            scores = list(returned)
        except TypeError:
            kind = type(returned).__name__
            message = f"returned a {kind}, not a list of one number for each answer"
            raise InvalidJob([Problem(self.where, message)]) from None
        if len(scores) != len(sequences):
            raise InvalidJob(
                [Problem(self.where, f"returned {len(scores)} scores for {len(sequences)} answers")]
            )
        for score, response in zip(scores, responses, strict=True):
            if not isinstance(score, Real) or not math.isfinite(score):
                raise InvalidJob(
                    [
                        Problem(
                            self.where,
                            f"scores must be finite numbers; got {show(score)} for {show(response)}",
                        )
                    ]
                )
        return torch.tensor(scores, dtype=torch.float32)


@dataclass(frozen=True)
class TokenScorer:
    """A token-classification model with one output, over the policy's own tokens: a reward for each of them."""

    model: PreTrainedModel
    token_budget: int
    pad_token_id: int

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:  # noqa: ARG002
        """float32 [A], response-aligned."""
        return infer(
            self.model,
            sequences,
            token_scores,
            sequences.response_lengths,
            token_budget=self.token_budget,
            pad_token_id=self.pad_token_id,
        )


@dataclass(frozen=True)
class ModelScorer:
    """A sequence-classification model over tokens; with a vocabulary of its own, over the text tokenized again."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    own_tokenizer: PreTrainedTokenizerBase
    token_budget: int

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:  # noqa: ARG002
        """float32 [N]."""
        if self.own_tokenizer.get_vocab() != self.tokenizer.get_vocab():
            sequences = self._tokenized_again(sequences)
        sizes = torch.ones(len(sequences), dtype=torch.int64)
        pad = self.own_tokenizer.pad_token_id or 0
        return infer(
            self.model, sequences, sequence_scores, sizes, token_budget=self.token_budget, pad_token_id=pad
        )

    def _tokenized_again(self, sequences: Sequences) -> Sequences:
        """An answer that was cut off gets no end token here either; what is too long loses its beginning."""
        own, config = self.own_tokenizer, self.model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None) or 0  # [-0:] is all of it
        pairs = []
        for i, (prompt, response) in enumerate(zip(*texts(sequences, self.tokenizer), strict=True)):
            ended = sequences.row(i)[-1] == self.tokenizer.eos_token_id
            tokens = [
                *own(prompt)["input_ids"],
                *own(response, add_special_tokens=False)["input_ids"],
                *([own.eos_token_id] if ended else []),
            ][-positions:]
            # The score is of the whole: where the answer begins makes no difference.
            pairs.append((tokens[:1], tokens[1:]))
        return Sequences.pack(pairs)


Score = Callable[[Sequences, Sequence[Mapping[str, Any]]], Tensor]


def weighted(
    scorers: Sequence[tuple[float, Score]], sequences: Sequences, rows: Sequence[Mapping[str, Any]]
) -> Tensor:
    """The sum of weight x score: float32, one for each sequence [N], or for each response token [A] where the scores
    are; in units of reward."""
    scores = [weight * score(sequences, rows) for weight, score in scorers]
    return torch.stack(scores).sum(0) if scores else torch.zeros(len(sequences))


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
