"""Prints the table of a selftest."""

import sys
from collections.abc import Sequence

from ..console.exits import print_line
from ..console.text import columns
from .checks import Check

_RESULTS = {True: "pass", False: "FAIL", None: "-"}


def passed(checks: Sequence[Check], cause: str) -> bool:
    """Prints the table, the cause if the run ended early, and each failure that is not merely its consequence. Returns
    whether every applicable check has passed."""
    rows = [("CHECK", "RESULT", "SEEN"), *((c.name, _RESULTS[c.passed], c.seen) for c in checks)]
    print_line("\n".join(columns(rows)), sys.stdout)
    if cause:
        print_line(f"error: the run: {cause}", sys.stderr)
    for check in checks:
        if check.passed is False and check.look:
            print_line(f"error: {check.name}: {check.seen}; look at {check.look}", sys.stderr)
    return not cause and all(check.passed is not False for check in checks)
