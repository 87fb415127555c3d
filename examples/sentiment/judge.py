"""Reward functions that need no model: each takes a batch's prompts, its responses and the rows that
the prompts came from, and returns one number for each response.

`positive` judges this example from outside: its words are written down by hand, the reward model learns from
pairs of answers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

POSITIVE = """
    admirable admire admired adore adored amazing appealing beautiful best brilliant captivating
    charming clever compelling convincing delight delightful enjoy enjoyable enjoyed entertaining
    excellent exciting fantastic fine fresh fun funny good great gripping happy hilarious impressive
    liked love loved lovely memorable moving perfect pleasant powerful stunning superb terrific
    thrilling touching warm wonderful
"""
NEGATIVE = """
    annoying awful awkward bad bland boring clumsy confusing disappointed disappointing dislike
    disliked dire dreadful dreary dull empty feeble flat forgettable hate hated hollow horrible lame
    lifeless loathe loathed mediocre messy miserable painful pointless poor predictable regret
    regretted ridiculous shallow silly slow stale stupid tedious terrible thin tired tiresome ugly
    unconvincing weak worst
"""
SIGN = dict.fromkeys(POSITIVE.split(), 1) | dict.fromkeys(NEGATIVE.split(), -1)
NEGATION = {"not", "never", "no", "nothing", "hardly", "cannot"}
NEGATION_REACH = 3  # "not at all good": how many words on, in the same clause, a negation still turns
CLAUSE_END = {*",.;:!?", "and", "but", "yet", "or", "because"}


def balance(text: str) -> int:
    """Positive words less negative ones; a word shortly after a negation counts for the other side."""
    total, reach = 0, 0
    for word in re.findall(r"[a-z]+(?:'[a-z]+)?|[,.;:!?]", text.lower()):
        if word in NEGATION or word.endswith("n't"):
            reach = NEGATION_REACH
            continue
        sign = SIGN.get(word, 0)
        total += -sign if reach else sign
        reach = 0 if word in CLAUSE_END else max(0, reach - 1)
    return total


def positive(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],  # noqa: ARG001
) -> list[float]:
    """1.0 for a response with more positive than negative words, else 0.0: a tie is not positive."""
    return [float(balance(response) > 0) for response in responses]


def brevity(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],  # noqa: ARG001
) -> list[float]:
    """1.0 for a response of up to 8 words, falling to 0.0 at 24; made to be weighed against another."""
    return [min(1.0, max(0.0, (24 - len(response.split())) / 16)) for response in responses]
