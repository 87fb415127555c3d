"""docs/reference/metrics.md as the tests hold runs to it: the figures that it names."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
MODELS = r"(policy_|critic_)?"
OF_EXAMPLES = {"chosen_share"}
"""Metrics of the losses of algorithms of one's own in examples/."""


@cache
def documented() -> dict[str, re.Pattern[str]]:
    """By its name: what a figure of the page is called in a run."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    names = [figure for row in rows for figure in re.findall(r"`([\w<>]+)`( \\\*)?", row)]
    return {
        name: re.compile((MODELS if several else "") + name.replace("<name>", r"\w+").replace("<i>", r"\d+"))
        for name, several in names
    }


def check(lines: Iterable[Mapping[str, object]]) -> None:
    """Every figure of these lines of metrics.jsonl has a line on the page."""
    names = {name for line in lines for name in line} - OF_EXAMPLES
    missing = {name for name in names if not any(p.fullmatch(name) for p in documented().values())}
    assert not missing, f"docs/reference/metrics.md says nothing of {sorted(missing)}"
