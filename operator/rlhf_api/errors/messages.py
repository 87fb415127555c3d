"""pydantic's errors as problems of a manifest, with the field that was meant."""

import re
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..field_types import PATTERNS, PENALTIES, former_names
from .meanings import UNKNOWN, Algorithm, meaning_of
from .model_fields import keys_of, model_at
from .other_names import OWNED
from .problem import MOST, InvalidJob, Problem, first, path, show
from .similar import plain, suggestion

_SIMILAR = 0.7
"""Least similarity of a key that is named for an unknown one: `prompt_key` and `promptsPerStep` have 0.61."""


def choices(error: ErrorDetails) -> list[str]:
    """The values that a field may have, where these are few; none of any other field."""
    if error["type"] != "literal_error":
        return []
    expected: str = error.get("ctx", {}).get("expected", "")
    return expected.replace("'", "").replace(" or ", ", ").split(", ")


def _meant(location: Sequence[int | str], model: type[BaseModel], algorithm: Algorithm) -> str:
    """A sentence about what an unknown key stands for, or with the keys that there are."""
    meaning = meaning_of(model, location, algorithm)
    if meaning.answer:
        return meaning.answer
    if meaning.fields and not meaning.mistyped:
        return f"did you mean {' or '.join(meaning.fields)}?"
    keys = keys_of(model_at(model, location[:-1]))
    return suggestion(meaning.mistyped or str(location[-1]), keys, _SIMILAR)


def _describe(error: ErrorDetails, model: type[BaseModel], algorithm: Algorithm) -> Problem:
    location, value = error["loc"], error["input"]
    where = path(
        location[:-1] if location[-1:] == ("[key]",) else location
    )  # pydantic's end of a wrong key's place
    if error["type"] == "extra_forbidden":
        key = str(location[-1])
        if key in OWNED and "deepspeed" in location:
            return Problem(where, f"is set by the job; use {OWNED[key]} instead (value {show(value)})")
        if location[:-1] == ("spec", "sampling") and plain(key) in map(plain, PENALTIES):
            message = "applies to evaluation alone, as a field of spec.evaluation: training does not compute with it"
            return Problem(where, f"{message}; remove it here (value {show(value)})")
        around = model_at(model, location[:-1])
        if around is not None and (name := former_names(around).get(key)):
            now = around.model_fields[name].alias
            return Problem(where, f"is the former name of {now}, which is there too; remove one of them")
        meant = _meant(location, model, algorithm)
        # A file that is no manifest has fields at the top, whose values are not ours to quote.
        quoted = f" (value {show(value)})" if location[1:] else ""
        return Problem(where, f"unknown field{quoted}; {meant}")
    if error["type"] == "missing":
        return Problem(where, "is required and missing")
    if error["type"] == "literal_error" and isinstance(value, str):
        expected = choices(error)
        hint = suggestion(value, expected)
        message = f"{show(value)} is none of {', '.join(expected)}"
        return Problem(where, f"{message}; {hint}" if hint.startswith("did you mean") else message)
    if error["type"] == "string_type" and isinstance(value, int | float):
        return Problem(where, f"must be text; put it in quotes; got {show(value)}")
    if error["type"] == "string_pattern_mismatch":
        pattern = error.get("ctx", {}).get("pattern", "")
        return Problem(where, f"{PATTERNS.get(pattern, f'must match {pattern}')}; got {show(value)}")
    return Problem(where, f"{in_our_words(error)}{_example(error, model)}; got {show(value)}")


def _example(error: ErrorDetails, model: type[BaseModel]) -> str:
    """The text given in place of a list, or of an object in a list, as one: in brackets, and under the only required
    key, or the first one. Empty for any other error."""
    location, value = error["loc"], error["input"]
    # A text that is no JSON, or no object, has no place.
    alone, in_list = error["type"] == "tuple_type", bool(location) and isinstance(location[-1], int)
    if not isinstance(value, str) or not (alone or (in_list and error["type"] == "model_type")):
        return ""
    item = model_at(model, location)
    if item is not None:
        required = [f.alias or name for name, f in item.model_fields.items() if f.is_required()]
        if len(required) > 1:
            return ""
        value = f"{{{(required or keys_of(item))[0]}: {value}}}"
    return f", such as [{value}]" if alone else f", such as {value}"


def in_our_words(error: ErrorDetails) -> str:
    """pydantic's message with `must ...` in place of `Input should ...`; a message of our own as it is."""
    message = re.sub(r"^\w+ should ", "must ", error["msg"].removeprefix("Value error, "))
    message = re.sub(r" after validation, not \d+$", "", message)
    message = re.sub(r"\b0\.0{6,}\d+", lambda number: f"{float(number[0]):g}", message)
    message = re.sub(r"a valid (array|list)", "a list", message)
    message = re.sub(r"a valid string, unable .*", "Unicode text, without half of a surrogate pair", message)
    return re.sub(r"a valid dictionary( or instance of \w+)?", "an object", message)


def from_pydantic(
    error: ValidationError,
    model: type[BaseModel],
    prefix: Sequence[int | str] = (),
    algorithm: Algorithm = UNKNOWN,
) -> InvalidJob:
    """A pydantic error of `model` as problems, with the field that was meant named for unknown keys. A missing field
    that such a key stands for is not reported."""
    errors = error.errors()
    # pydantic takes a list to be too short where one of its items is wrong.
    short = {d["loc"][:i] for d in errors for i, part in enumerate(d["loc"]) if isinstance(part, int)}
    unknown = [d["loc"] for d in errors[:MOST] if d["type"] == "extra_forbidden"]
    meant = {field for location in unknown for field in meaning_of(model, location, algorithm).fields}
    reported = (
        d
        for d in errors
        if not (d["type"] == "too_short" and d["loc"] in short)
        and not (d["type"] == "missing" and path(d["loc"]) in meant)
    )
    problems = first(_describe(d, model, algorithm) for d in reported)
    if prefix:
        problems = [Problem(f"{path(prefix)}.{p.where}", p.message) for p in problems]
    return InvalidJob(problems)
