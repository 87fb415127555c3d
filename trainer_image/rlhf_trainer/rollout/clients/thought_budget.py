"""Thoughts that end at a number of tokens: the tokens that close one there are given to the policy, as context."""

from array import array
from dataclasses import dataclass
from typing import Self

from transformers import PreTrainedTokenizerBase

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.sampling import Sampling

from ...data.encode import continuation
from ...data.text import continued_text
from ...tensors.records import Prompt
from ..partial_rollout import Response


@dataclass(frozen=True)
class ThoughtBudget:
    """Closes the thought of a response of one turn which has `tokens` tokens, and in whose text `end` has not come:
    with the tokens `closing`, which training takes for context. Reads nothing but the response, which another process
    may have begun."""

    tokens: int
    end: str
    closing: "array[int]"
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def of(cls, sampling: Sampling, tokenizer: PreTrainedTokenizerBase) -> Self | None:
        """None for a job without one. Raises InvalidJob where the limit of a response leaves no token after it."""
        section = sampling.thinking
        if section is None:
            return None
        closing = continuation(tokenizer, "\n", section.closing_text)
        if (whole := section.budget + len(closing)) >= (most := sampling.max_new_tokens):
            parts = f"{section.budget} tokens and the {len(closing)} of closing"
            message = (
                f"leaves no token for an answer: {parts} are {whole}, and sampling.maxNewTokens is {most}"
            )
            raise InvalidJob([Problem("spec.sampling.thinking.budget", message)])
        return cls(section.budget, section.end, array("i", closing), tokenizer)

    def is_reached(self, response: Response) -> bool:
        """True for an unfinished response that has as many tokens, and no closing yet."""
        return response.end is None and len(response.tokens) == self.tokens

    def close(self, prompt: Prompt, response: Response) -> None:
        """Appends the closing to a response that has reached the budget in its thought."""
        text = continued_text(self.tokenizer, prompt.tokens, response.tokens, skip_special_tokens=False)
        if self.end not in text:
            response.add_context(self.closing)
