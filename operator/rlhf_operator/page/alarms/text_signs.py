"""Signs in the text of responses that no figure shows: repetition, and characters that are none."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .suspicions import Alarm, unless_there

_WORDS = 4
"""Of the sequences that are counted."""
_FEWEST_WORDS, _FEWEST_RESPONSES = 24, 8
_SHARE = 0.25
"""Of responses with a sign, from which it is worth an alarm."""
_LONGEST = 20_000
_REPLACEMENT = "\ufffd"


def find_text_signs(responses: Sequence[str], spec: Mapping[str, Any]) -> Iterator[Alarm]:
    """Alarms about the newest responses. No metric of a step counts either sign; each has the rule of one that moves
    with it."""
    if len(responses) < _FEWEST_RESPONSES:
        return
    for has_sign, title, text, metric, limits in (
        (
            repeats,
            "{:.0%} of the newest responses repeat themselves",
            "read them: a reward may be paid by repetition; a policy that repeats itself is sure of each token, so its "
            "entropy falls",
            "entropy",
            "deviationsBelow: 5, window: 30, steps: 3, action: pause",
        ),
        (
            is_garbled,
            "{:.0%} of the newest responses hold broken characters",
            "the policy samples parts of characters: it is far from text, and so from its reference, or its tokenizer "
            "is another",
            "kl_mean",
            "deviationsAbove: 5, window: 30, steps: 3, action: rollback",
        ),
    ):
        share = sum(map(has_sign, responses)) / len(responses)
        if share >= _SHARE:
            rule = f"{{metric: {metric}, {limits}}}"
            yield Alarm("warning", title.format(share), text, unless_there(rule, metric, spec))


def repeats(response: str) -> bool:
    """True if half of a long response is made of sequences of words that come again and again."""
    words = response[:_LONGEST].split()
    if len(words) < _FEWEST_WORDS:
        return False
    counts = Counter(zip(*(words[place:] for place in range(_WORDS)), strict=False))
    return sum(count for count in counts.values() if count > 2) > counts.total() / 2


def is_garbled(response: str) -> bool:
    """True for text with characters that could not be decoded."""
    return response[:_LONGEST].count(_REPLACEMENT) > 1
