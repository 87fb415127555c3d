"""Splits the tokens of a response into its turns and the replies between them."""

from array import array
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class Turn(NamedTuple):
    """One turn of a response: its sampled tokens, and the reply's tokens after them, none yet for the last one; `end`:
    number of the response's tokens up to the turn's last one."""

    sampled: Sequence[int]
    reply: Sequence[int]
    end: int


def turns_of(tokens: "array[int]", sampled: "array[int]") -> list[Turn]:
    """The turns of a response's `tokens`; `sampled` as in `Rollout`: empty where all were."""
    flags = sampled or array("b", [1]) * len(tokens)
    turns, at = list[Turn](), 0
    for is_sampled, run in groupby(flags):
        end = at + sum(1 for _ in run)
        if is_sampled:
            turns.append(Turn(tokens[at:end], (), end))
        else:
            turns[-1] = turns[-1]._replace(reply=tokens[at:end])
        at = end
    return turns
