"""The table of a selftest."""

import sys
from collections.abc import Sequence

from ..exits import say
from ..verbs.format import columns
from .checks import Check

_RESULTS = {True: "pass", False: "FAIL", None: "-"}


def passed(found: Sequence[Check], cause: str) -> bool:
    """Prints it; then why the run ended as it should not have, and each failure that is not merely its consequence.
    Returns whether every check that applies has passed."""
    rows = [("CHECK", "RESULT", "SEEN"), *((c.name, _RESULTS[c.passed], c.seen) for c in found)]
    say("\n".join(columns(rows)), sys.stdout)
    if cause:
        say(f"error: the run: {cause}", sys.stderr)
    for check in found:
        if check.passed is False and check.look:
            say(f"error: {check.name}: {check.seen}; look at {check.look}", sys.stderr)
    return not cause and all(check.passed is not False for check in found)
