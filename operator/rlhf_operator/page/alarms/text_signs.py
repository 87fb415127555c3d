"""Signs in the text of responses that no figure shows: repetition, and characters that are none."""

from collections import Counter
from collections.abc import Iterator, Sequence

from .suspicions import Alarm

_WORDS = 4
"""Of the sequences that are counted."""
_FEWEST_WORDS, _FEWEST_RESPONSES = 24, 8
_SHARE = 0.25
"""Of responses with a sign, from which it is worth an alarm."""
_LONGEST = 20_000
_REPLACEMENT = "\ufffd"


def find_text_signs(responses: Sequence[str]) -> Iterator[Alarm]:
    """Alarms about the newest responses."""
    if len(responses) < _FEWEST_RESPONSES:
        return
    for has_sign, title, text in (
        (
            repeats,
            "{:.0%} of the newest responses repeat themselves",
            "read them: a reward may be paid by repetition",
        ),
        (
            is_garbled,
            "{:.0%} of the newest responses hold broken characters",
            "the policy samples parts of characters: it is far from text, or its tokenizer is another",
        ),
    ):
        share = sum(map(has_sign, responses)) / len(responses)
        if share >= _SHARE:
            yield Alarm("warning", title.format(share), text)


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
