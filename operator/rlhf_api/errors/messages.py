"""pydantic's errors as problems of a manifest, with the field that was meant."""

import difflib
import re
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..field_types import PATTERNS, PENALTIES, former_names
from .model_fields import keys_of, model_at, places
from .other_names import OTHER_NAMES, OWNED, plain
from .problem import InvalidJob, Problem, first, path, show


def closest(key: str, keys: Sequence[str], similarity: float = 0.6) -> str:
    """The key of `keys` that is most similar to `key`; empty if none is. `similarity`: 1 for all but the spelling."""
    by_plain = {plain(k): k for k in keys}
    close = difflib.get_close_matches(plain(key), by_plain, n=1, cutoff=similarity)
    return by_plain[close[0]] if close else ""


def suggestion(key: str, keys: Sequence[str]) -> str:
    """A sentence with the key of `keys` that is most similar to `key`."""
    if close := closest(key, keys):
        return f'did you mean "{close}"?'
    return "known here: " + ", ".join(sorted(keys)) if keys else "remove it"


def choices(error: ErrorDetails) -> list[str]:
    """The values that a field may have, where these are few; none of any other field."""
    if error["type"] != "literal_error":
        return []
    expected: str = error.get("ctx", {}).get("expected", "")
    return expected.replace("'", "").replace(" or ", ", ").split(", ")


def _meant(key: str, keys: Sequence[str], model: type[BaseModel], section: str, above: str) -> str:
    """A sentence that names the field meant by an unknown key: a field with this name in another system, beside the key
    or elsewhere; a mistyped field beside it; a field of this name in another place; a similar one."""
    typed = closest(key, keys, 1 if plain(key) in OTHER_NAMES else 0.8)
    paths = [] if typed else places(model, key, section)
    elsewhere = [field for field in paths if field.rpartition(".")[0] == above] or paths
    return f"did you mean {' or '.join(elsewhere)}?" if elsewhere else suggestion(key, keys)


def _describe(error: ErrorDetails, model: type[BaseModel], section: str) -> Problem:
    location, value = error["loc"], error["input"]
    where = path(location)
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
        meant = _meant(key, keys_of(around), model, section, path(location[:-1]))
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
    error: ValidationError, model: type[BaseModel], prefix: Sequence[int | str] = (), section: str = ""
) -> InvalidJob:
    """A pydantic error of `model` as problems, with the right spelling or place named for unknown keys; `section`: the
    path of the algorithm's settings."""
    errors = error.errors()
    # pydantic takes a list to be too short where one of its items is wrong.
    short = {d["loc"][:i] for d in errors for i, part in enumerate(d["loc"]) if isinstance(part, int)}
    reported = (d for d in errors if d["type"] != "too_short" or d["loc"] not in short)
    problems = first(_describe(d, model, section) for d in reported)
    if prefix:
        problems = [Problem(f"{path(prefix)}.{p.where}", p.message) for p in problems]
    return InvalidJob(problems)
