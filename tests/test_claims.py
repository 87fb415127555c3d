"""What the README claims of roles that die was measured: each claim has its cells of the fault matrix, with no prompt
lost and none trained twice."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fault_matrix.cells import MOMENTS, PODS, Cell, Mode
from tests.fault_matrix.page import happened

ROOT = Path(__file__).parents[1]
RESULTS = [json.loads(line) for line in (ROOT / "docs" / "faults.jsonl").read_text().splitlines()]
GENERATOR = ("generator server", "generator engine")
DYING = re.compile(r"\b(dies?|died|dying|kill\w*|crash\w*|lost|lose|surviv\w+|evict\w*|fails?)\b")


@dataclass(frozen=True)
class Claim:
    """The cells that show it: each fault of each victim at each moment; `trains_on`: without a start of the trainer."""

    mode: Mode
    victims: Sequence[str]
    faults: Sequence[str] = ("SIGKILL",)
    moments: Sequence[str] = tuple(MOMENTS)
    trains_on: bool = False

    def cells(self) -> list[Cell]:
        return [Cell(self.mode, v, f, m) for v in self.victims for f in self.faults for m in self.moments]


CLAIMS = {
    "may die](docs/faults.md#sigkill-1) without taking the run along": Claim(
        "staleness 2", ("trainer rank 0", "trainer rank 1", *GENERATOR, "reward", "reference")
    ),
    "a generator that dies is [replaced while training goes on](docs/faults.md#on-pods)": Claim(
        PODS, ("generator",), ("SIGKILL", "eviction", "node lost"), ("generating",), trains_on=True
    ),
    "vLLM servers; one may die at any moment": Claim("staleness 2", GENERATOR, trains_on=True),
}


def claims_in_readme() -> str:
    """The README without its list of pages, and on one line."""
    text, _, _ = (ROOT / "README.md").read_text().partition("## Read on")
    return " ".join(text.split())


def test_the_readme_claims_nothing_else_of_what_dies():
    text = claims_in_readme()
    for words in CLAIMS:
        assert words in text, words
        text = text.replace(words, "")
    assert [found[0] for found in DYING.finditer(text)] == []


@pytest.mark.parametrize("words", CLAIMS)
def test_each_claim_was_measured(words: str):
    claim = CLAIMS[words]
    for cell in claim.cells():
        rows = [row for row in RESULTS if Cell(**{key: row[key] for key in vars(cell)}) == cell]
        assert rows, f"{cell} was never run"
        for row in rows:
            assert "failed" not in row, row
            assert (row["lost"], row["twice"], row["end"]) == (0, 0, ""), row
            assert not (claim.trains_on and "trainer" in happened(row)), row
