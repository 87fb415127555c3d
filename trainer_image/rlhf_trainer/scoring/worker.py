"""Worker process of a reward function: one JSON line a call on stdin, one JSON line a reply. Imports no torch.

`python -m rlhf_trainer.scoring.worker FIELD MODULE:NAME PARENT` first writes `{"ready": true}`, or the error of the
import. A call is `[prompts, responses, rows]`; its reply has `scores`, or `failed` (it may be tried again), or
`invalid` (an error of the job itself: the message of a Problem at FIELD).
"""

import ctypes
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

from rlhf_api.problems import InvalidJob, show

from ..imports import Function, import_function

PR_SET_PDEATHSIG = 1
FIRST_TO_KILL = "1000"
"""`oom_score_adj` of a worker: where memory ends, the kernel ends a worker and not the server."""


def call(
    function: Function, prompts: list[str], responses: list[str], rows: list[Mapping[str, Any]]
) -> dict[str, Any]:
    """The reply. OSError, which errors of connections and timeouts are, and MemoryError may pass; any other error, and
    whatever is not one finite number for each response, is the function's own."""
    try:
        returned = function(prompts, responses, rows)
    except (OSError, MemoryError) as error:
        return {"failed": _raised(error)}
    except Exception as error:
        return {"invalid": _raised(error)}
    try:
        scores = list(returned)
    except TypeError:
        kind = type(returned).__name__
        return {"invalid": f"returned a {kind}, not a list of one number for each response"}
    if len(scores) != len(responses):
        return {"invalid": f"returned {len(scores)} scores for {len(responses)} responses"}
    for score, response in zip(scores, responses, strict=True):
        if not _finite(score):
            return {"invalid": f"scores must be finite numbers; got {show(score)} for {show(response)}"}
    return {"scores": [float(score) for score in scores]}


def main() -> None:
    where, path, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # The function's own prints go to the log, and what it reads is empty: both pipes are the server's.
    calls, replies = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_KILL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    sys.path.insert(0, str(Path.cwd()))  # where the user's modules are
    try:
        function = import_function(path, where)
    except InvalidJob as error:
        print(json.dumps({"invalid": error.problems[0].message}), file=replies, flush=True)
        return
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in calls:
        print(json.dumps(call(function, *json.loads(line))), file=replies, flush=True)


def _finite(score: object) -> bool:
    try:
        return isinstance(score, Real) and math.isfinite(score)
    except OverflowError:  # an integer that no float holds
        return False


def _raised(error: BaseException) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"the function raised {type(error).__name__}: {error} ({at.filename}:{at.lineno})"


if __name__ == "__main__":
    main()
