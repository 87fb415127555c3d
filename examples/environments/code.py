"""Programs that must pass unit tests: what the policy writes runs in a sandbox, and the tests stay outside."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlhf_trainer.extend import run_in_sandbox

RUNS = """
import json, sys
work = json.load(sys.stdin)
program = eval("lambda x: " + work["program"])
print(json.dumps([program(x) for x in work["arguments"]]))
"""


class Code:
    """One episode. The row has tests, pairs of an argument and the result; the first one that fails is the reply."""

    results: ClassVar[dict[str, Sequence[object]]] = {}
    """Of what was run before, in this process: the same program is not run again."""

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begins with the row's own prompt."""
        self._tests = row["tests"]

    async def step(self, message: Mapping[str, Any]) -> tuple[str, float, bool]:
        """Runs the turn as a function of x. A coroutine, so that other episodes go on meanwhile."""
        arguments = [argument for argument, _ in self._tests]
        work = json.dumps({"program": message["content"].strip(), "arguments": arguments})
        if work not in self.results:
            ran = await run_in_sandbox(("python3", "-I", "-S", "-c", RUNS), work, seconds=2)
            self.results[work] = read_results(ran.output, len(arguments))
        for (argument, right), result in zip(self._tests, self.results[work], strict=True):
            if result != right:
                return f" {argument} gives {right} :", 0.0, False
        return "", 1.0, True


def read_results(output: str, count: int) -> Sequence[object]:
    """The program's result for each argument; None for each where it printed anything else."""
    try:
        results = json.loads(output)
    except (ValueError, RecursionError):
        results = None
    return results if isinstance(results, list) and len(results) == count else [None] * count
