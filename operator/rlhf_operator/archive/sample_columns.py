"""Columns of samples: what choosing and ordering them needs, 48 bytes each, while their texts stay in the file."""

from array import array
from collections.abc import Mapping
from math import inf, nan
from typing import Any

from pydantic_core import from_json

from .run_files import LONGEST_LINE

BYTES = 48
"""Of a sample."""
_LAST_STEP = 2**53
_NAMES = ("offsets", "steps", "numbers", "groups", "scores", "ids", "prompts")


class Columns:
    """Samples in the order of their file, which is that of their steps: a line of an earlier step than the one before,
    as of a hand's edit, is left out."""

    def __init__(self) -> None:
        self.offsets, self.steps = array("q"), array("q")
        """Begin of each one's line in the file; its step."""
        self.numbers, self.groups = array("I"), array("I")
        """Each one's place among those of its step, and that of the first one of its group; see `number`."""
        self.scores = array("d")
        """NaN for none."""
        self.ids, self.prompts = array("q"), array("q")
        """Hashes of the prompt's id and text, of this process."""

    def __len__(self) -> int:
        return len(self.offsets)

    def add_lines(self, data: bytes, offset: int, last: float = inf) -> None:
        """Adds the samples in whole lines, which begin at this offset of the file, up to those of step `last`."""
        for line in data.split(b"\n"):
            if line and len(line) < LONGEST_LINE:
                self._add(line, offset, last)
            offset += len(line) + 1

    def append(self, offset: int, step: int, score: float, prompt_id: str, prompt: str) -> None:
        """Adds a sample; `score`: NaN for none."""
        self.offsets.append(offset)
        self.steps.append(step)
        self.scores.append(score)
        self.ids.append(hash(prompt_id))
        self.prompts.append(hash(prompt))

    def number(self) -> None:
        """Numbers the samples that were added since the last call; the first of all begins a step."""
        begin = len(self.numbers)
        place = self.begin_of(begin - 1) if begin else 0
        groups = dict[int, int]()
        while place < len(self):
            is_first = place == 0 or self.steps[place] != self.steps[place - 1]
            if is_first:
                groups, number = {}, 0
            else:
                number = self.numbers[place - 1] + 1
            group = groups.setdefault(self.ids[place], number)
            if place >= begin:
                self.numbers.append(number)
                self.groups.append(group)
            place += 1

    def begin_of(self, place: int) -> int:
        """The place of the first sample of the step that this one is of."""
        return place - self.numbers[place]

    def extend(self, newer: "Columns") -> None:
        """Adds newer samples, column by column, so that no two copies of all are in memory, and empties theirs."""
        for name in _NAMES:
            getattr(self, name).extend(getattr(newer, name))
            setattr(newer, name, getattr(self, name)[:0])

    def take(self, count: int) -> "Columns":
        """Removes the first samples, and returns them."""
        taken = Columns()
        for name in _NAMES:
            column = getattr(self, name)
            setattr(taken, name, column[:count])
            del column[:count]
        return taken

    def _add(self, line: bytes, offset: int, last: float) -> None:
        sample = read_sample(line)
        if sample is not None and (self.steps[-1] if self.steps else 0) <= sample["step"] <= last:
            score = _read_score(sample.get("score"))
            self.append(offset, sample["step"], score, sample["prompt_id"], sample["prompt"])


def read_sample(line: bytes) -> Mapping[str, Any] | None:
    """The keys of a sample's line; None for a line that is none."""
    try:
        sample = from_json(line)
        step, texts = sample["step"], (sample["prompt_id"], sample["prompt"], sample["response"])
    except (ValueError, KeyError, TypeError):
        return None
    is_sample = type(step) is int and 0 <= step <= _LAST_STEP and all(type(text) is str for text in texts)
    return sample if is_sample else None


def _read_score(score: object) -> float:
    try:
        return float(score) if isinstance(score, int | float) else nan
    except OverflowError:
        return nan
