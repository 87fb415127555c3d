"""Steps of a response: the tokens at which they end, by the text that separates them."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from rlhf_api.errors.problem import InvalidJob, Problem, show

from .encode import Encoded
from .text import continued_text, token_texts

NO_STEP_ENDS = -1.0
"""Label of tokens at which no step ends."""


class UnfitSteps(InvalidJob):
    """Steps of a row that cannot be told apart again by their separator; names the step."""


def step_ends(texts: Sequence[str], separator: str, *, cut: bool = False) -> list[int]:
    """The last token of each step of a response, whose tokens add `texts`: that in which a `separator` ends, and of the
    last step the last one, so that the end of a response is judged whatever stands before it. Blank text is no step. Of
    a response that was `cut` the text after the last separator is none either; any other response has at least one.
    """
    whole, limits = "".join(texts), list(accumulate(map(len, texts)))
    ends, start = list[int](), 0
    while (match := whole.find(separator, start)) >= 0:
        after = match + len(separator)
        if whole[start:match].strip():
            ends.append(bisect_left(limits, after))
        start = after
    if not cut:
        before = ends if whole[start:].strip() else ends[:-1]
        ends = [*before, len(texts) - 1]
    return list(dict.fromkeys(ends))


def joined(steps: Sequence[str], separator: str) -> str:
    """The response with these steps. Raises UnfitSteps where a separator is part of a step too."""
    for number, step in enumerate(steps):
        if (step + separator).find(separator) != len(step):
            message = (
                f"has spec.data.stepSeparator, {separator!r}, which ends steps; choose one that no step has"
            )
            raise UnfitSteps([Problem(f"steps[{number}]", f"{message}; got {show(step)}")])
    return separator.join(steps)


def check_separator(tokenizer: PreTrainedTokenizerBase, separator: str) -> None:
    """Raises InvalidJob for a separator that the tokens' text lacks, as of a special token: no step would end there."""
    tokens = tokenizer(f"a{separator}a", add_special_tokens=False)["input_ids"]
    if separator not in continued_text(tokenizer, (), tokens):
        message = "is no text of the tokenizer's: a special token has none, and others may be changed"
        raise InvalidJob([Problem("spec.data.stepSeparator", f"{message}; got {show(separator)}")])


def step_labels(
    tokenizer: PreTrainedTokenizerBase, encoded: Encoded, labels: Sequence[float], separator: str
) -> tuple[float, ...]:
    """Of each response token the label of the step that ends there, or NO_STEP_ENDS. Raises UnfitSteps where the tokens
    have another number of steps."""
    cut = encoded.response_cut > 0
    ends = step_ends(token_texts(tokenizer, encoded.prompt, encoded.response), separator, cut=cut)
    if len(ends) > len(labels) or (len(ends) < len(labels) and not cut):
        message = (
            f"the tokenizer's text has {len(ends)} steps, and the row {len(labels)}: it joins or changes some"
        )
        raise UnfitSteps([Problem("steps", f"{message}; use another spec.data.stepSeparator")])
    of_tokens = [NO_STEP_ENDS] * len(encoded.response)
    for end, label in zip(ends, labels, strict=False):
        of_tokens[end] = float(label)
    return tuple(of_tokens)
