"""Scores of the steps of responses, from a process reward model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.steps import step_ends
from ..maths.outputs import token_scores
from ..maths.steps import RESPONSE_SCORES
from ..models.forward.inference import Forward, infer
from ..tensors.records import Sequences
from .rewards import texts_of_tokens


@dataclass(frozen=True)
class StepScorer:
    """A token-classification model with one output, over the policy's own tokens: the log-odds that a step is right at
    its last token. A response that was cut off ends its last step."""

    forward: Forward
    tokenizer: PreTrainedTokenizerBase
    separator: str
    how: str
    """A key of RESPONSE_SCORES, or `each`."""
    stop: Sequence[str] = ()

    def __call__(self, sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:  # noqa: ARG002
        """Probabilities float32 [A], response-aligned, 0 where no step ends; or scores of responses [N]."""
        lengths = sequences.response_lengths
        odds = infer(self.forward, sequences, token_scores, lengths).split(lengths.tolist())
        texts = texts_of_tokens(sequences, self.tokenizer, self.stop)
        scores = [self._scores(*each) for each in zip(odds, texts, strict=True)]
        return torch.cat(scores) if self.how == "each" else torch.stack(scores)

    def _scores(self, odds: Tensor, texts: Sequence[str]) -> Tensor:
        ends, probabilities = step_ends(texts, self.separator), torch.sigmoid(odds)
        if self.how == "each":
            return torch.zeros_like(odds).index_copy(0, torch.tensor(ends), probabilities[ends])
        return RESPONSE_SCORES[self.how](probabilities[ends])
