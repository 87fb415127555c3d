"""Worker process of a reward function: one JSON line a call on stdin, one JSON line a reply. Imports no torch.

`python -m rlhf_trainer.scoring.worker FIELD MODULE:NAME PARENT` first writes `{"ready": true}`, or the error of the
import. A call is `[prompts, responses, rows, tokens]`, `tokens` null if whole responses are scored; its reply has
`scores`, `failed` (may be retried), or `invalid` (an error of the job itself: the message of a Problem at FIELD).
"""

import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping, Set
from typing import Any, TextIO

from rlhf_api.errors.problem import InvalidJob, show
from rlhf_api.host.imports import described
from rlhf_api.numbers import LARGEST_SCORE

from ..process.imports import Function, import_function
from ..process.numbers import finite_number
from ..process.worker_pipes import take_pipes

FINE_GRAINED = "rewards of tokens need spec.reward.fineGrained: true"
NO_SCORES = (str, bytes, bytearray, memoryview, Mapping, Set)
"""Iterables that hold no scores."""


def call(
    function: Function,
    prompts: list[str],
    responses: list[str],
    rows: list[Mapping[str, Any]],
    tokens: list[list[str]] | None,
) -> dict[str, Any]:
    """The reply to a call. OSError (also connection errors and timeouts) and MemoryError are retriable; any other
    error, and any result but one finite number for each response or each of its tokens, is the function's fault."""
    parameter = _tokens_parameter(function)
    if parameter is not None and tokens is None and parameter.default is parameter.empty:
        return {"invalid": f"needs tokens, and responses are scored as a whole; {FINE_GRAINED}"}
    more = {} if parameter is None or tokens is None else {"tokens": [[*each] for each in tokens]}
    try:
        # Its own lists, which it may empty as it goes.
        returned = function([*prompts], [*responses], [*rows], **more)
        return {"scores": _scores(returned, responses, tokens)}
    except _Unfit as error:
        return {"invalid": str(error)}
    except (OSError, MemoryError) as error:
        return {"failed": f"the function raised {described(error)}"}
    except Exception as error:
        return {"invalid": f"the function raised {described(error)}"}


class _Unfit(Exception):
    """The function returned anything but scores."""


def _scores(
    returned: object, responses: list[str], tokens: list[list[str]] | None
) -> list[float | list[float]]:
    """The scores in what a function returned, a generator too, whose own errors are raised. Raises _Unfit."""
    scores = _elements(returned)
    if scores is None:
        kind = type(returned).__name__
        raise _Unfit(f"returned a {kind}, not a list of one number for each response")
    if len(scores) != len(responses):
        raise _Unfit(f"returned {len(scores)} scores for {len(responses)} responses")
    counts = [None] * len(responses) if tokens is None else [len(texts) for texts in tokens]
    return [_checked(*each) for each in zip(scores, responses, counts, strict=True)]


def _elements(returned: object) -> list[object] | None:
    """The elements of a list, an array or a tensor; None for what has none, such as numbers, also as arrays, and texts,
    or none in the order of the responses: sets, and mappings, whose elements are their keys."""
    if (
        not isinstance(returned, Iterable)
        or isinstance(returned, NO_SCORES)
        or getattr(returned, "ndim", 1) == 0
    ):
        return None
    return list(returned)


def _checked(score: object, response: str, tokens: int | None) -> float | list[float]:
    """A response's score, or one for each of its `tokens`. Raises _Unfit for anything else."""
    values = _elements(score)
    if values is None:
        return _finite(score, response)
    if tokens is None:
        raise _Unfit(f"returned several numbers for {show(response)}; {FINE_GRAINED}")
    if len(values) != tokens:
        counts = f"{len(values)} numbers for {tokens} tokens"
        raise _Unfit(f"returned {counts}, of {show(response)}; return one for each, or one in all")
    return [_finite(value, response) for value in values]


def main() -> None:
    where, path, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if (pipes := take_pipes(parent)) is None:
        return
    calls, replies = pipes
    try:
        function = import_function(path, where)
    except InvalidJob as error:
        _send({"invalid": error.problems[0].message}, replies)
        return
    _send({"ready": True}, replies)
    own = os.getpid()
    for line in calls:
        reply = call(function, *json.loads(line))
        if os.getpid() != own:  # a child that the function forked, and that returned as well
            os._exit(0)
        _send(reply, replies)


def _send(reply: Mapping[str, object], replies: TextIO) -> None:
    replies.write(f"{json.dumps(reply)}\n")
    replies.flush()


def _tokens_parameter(function: Function) -> inspect.Parameter | None:
    try:
        return inspect.signature(function).parameters.get("tokens")
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _finite(score: Any, response: str) -> float:
    try:
        return finite_number(score, LARGEST_SCORE)
    except ValueError as error:
        raise _Unfit(f"each score {error} for {show(response)}") from None


if __name__ == "__main__":
    main()
