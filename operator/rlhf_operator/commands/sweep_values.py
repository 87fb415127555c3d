"""Values that a sweep tries: `path=[value, value]` and `path=log(1e-6,1e-4)`, as the overrides of each trial; pure."""

import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.strict_yaml import documents
from rlhf_api.manifest.load import override_keys

FORMS = "path=[value, value], path=log(LOW,HIGH) or path=uniform(LOW,HIGH)"
MOST_TRIALS = 1000
_RANGE = re.compile(r"(log|uniform)\(([^,()]+),([^,()]+)\)")
_DRAWS_EACH = 100
"""Draws for each trial, of which the first that is new counts."""
_DIGITS = 6


class Range(NamedTuple):
    """Numbers from `low` to `high`, whole ones if both are; drawn evenly, or evenly by their logarithms."""

    low: float
    high: float
    is_log: bool

    def draw(self, source: random.Random) -> float:
        if self.is_log:
            value = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = source.uniform(self.low, self.high)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return round(value)
        return float(f"{value:.3g}")  # a learning rate that a person can read


Values = Mapping[str, Range | Sequence[Any]]
"""Values to try, by the path of the field."""


def parse_values(texts: Sequence[str], *, ranges: bool) -> Values:
    """The lists and, if there may be some, the ranges. Raises InvalidJob with all that are neither."""
    values: dict[str, Range | Sequence[Any]] = {}
    problems = [] if texts else [Problem("sweep", f"has nothing to try; give {FORMS}")]
    for text in texts:
        path, _, expression = text.partition("=")
        try:
            if taken := next((other for other in values if _overlap(path, other)), None):
                raise InvalidJob([Problem(text, f"{taken} has values already; give them in one list")])
            values[path] = _parse(text, expression, ranges=ranges)
        except InvalidJob as error:
            problems += error.problems
    if problems:
        raise InvalidJob(problems)
    return values


def _overlap(path: str, other: str) -> bool:
    """True if the fields are the same one, however they are spelled, or one is in the other."""
    keys, others = override_keys(path), override_keys(other)
    shorter = min(len(keys), len(others))
    return keys[:shorter] == others[:shorter]


def _parse(text: str, expression: str, *, ranges: bool) -> Range | Sequence[Any]:
    if match := _RANGE.fullmatch(expression.replace(" ", "")):
        if not ranges:
            raise InvalidJob([Problem(text, "is a range, of which --random N draws; a grid has lists")])
        low, high = (_number(text, part) for part in match.groups()[1:])
        if not low < high or (match[1] == "log" and low <= 0):
            rule = "0 < LOW < HIGH" if match[1] == "log" else "LOW < HIGH"
            raise InvalidJob([Problem(text, f"{match[1]}(LOW,HIGH) must have {rule}")])
        return Range(low, high, match[1] == "log")
    (value,) = documents(expression, text) or [None]
    if not isinstance(value, list) or not value:
        message = f"must be {FORMS}; what is the same in all trials is given by --set"
        raise InvalidJob([Problem(text, message)])
    return value


def _number(text: str, part: str) -> float:
    try:
        number = int(part) if re.fullmatch(r"-?\d+", part) else float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidJob([Problem(text, f"must be a number; got {part!r}")])
    return number


def grid(values: Values) -> list[tuple[str, ...]]:
    """The overrides of each trial, of every combination of the lists. Raises InvalidJob if there are too many."""
    lists = [each for each in values.values() if not isinstance(each, Range)]
    if (count := math.prod(map(len, lists))) > MOST_TRIALS:
        raise InvalidJob(
            [Problem("sweep", f"has {count} trials; at most {MOST_TRIALS}, or draw with --random N")]
        )
    return _distinct(_overrides(values, chosen) for chosen in itertools.product(*lists))


def draw(values: Values, count: int, seed: int) -> list[tuple[str, ...]]:
    """The overrides of `count` trials, or of fewer if there are no more; of a larger count, the same first ones."""
    source = random.Random(seed)
    drawn: dict[tuple[str, ...], None] = {}
    for _ in range(_DRAWS_EACH * count):
        if len(drawn) == count:
            break
        chosen = [
            each.draw(source) if isinstance(each, Range) else source.choice(each) for each in values.values()
        ]
        drawn.setdefault(_overrides(values, chosen))
    return list(drawn)


def _overrides(values: Values, chosen: Sequence[Any]) -> tuple[str, ...]:
    return tuple(sorted(f"{path}={json.dumps(value)}" for path, value in zip(values, chosen, strict=True)))


def _distinct(trials: Iterator[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(trials))


def trial_name(overrides: Sequence[str], room: int) -> str:
    """A trial's name of at most `room` characters: its values, and digits that no other trial's overrides have. It does
    not depend on what else a sweep tries, so a larger sweep goes on with the trials of a smaller one."""
    digest = hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:_DIGITS]
    words = "-".join(_word(text.partition("=")[2]) for text in overrides)
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower())[: max(0, room - _DIGITS - 1)].strip("-")
    return f"{slug}-{digest}" if slug else digest


def _word(value: str) -> str:
    """A value as a part of a name, in which 0.0001 would look as 0.001 does."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        return value
    return f"{number.normalize():e}" if number.is_finite() and 0 < abs(number) < 0.01 else value
