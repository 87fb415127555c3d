"""The README's claims: of each role's death, its cells of the fault matrix, with no prompt lost and none trained on
twice; of the demo's duration, the measurement; of `kubectl get`, its columns."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults.matrix.cells import MOMENTS, PODS, Cell, Mode
from tests.faults.matrix.page import happened

from rlhf_api.schema.crd import definition

ROOT = Path(__file__).parents[2]
RESULTS = [
    json.loads(line) for line in (ROOT / "benchmarks" / "results" / "faults.jsonl").read_text().splitlines()
]
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
    "may die](benchmarks/results/faults.md#staleness-2) without taking the run along": Claim(
        "staleness 2", ("trainer rank 0", "trainer rank 1", *GENERATOR, "reward", "reference")
    ),
    "a generator that dies is [replaced while training goes on](benchmarks/results/faults.md#on-pods)": Claim(
        PODS, ("generator",), ("SIGKILL", "eviction", "node lost"), ("generating",), trains_on=True
    ),
    "vLLM servers; one may die at any moment": Claim("staleness 2", GENERATOR, trains_on=True),
}


def claims_in_readme() -> str:
    """The README without samples of output and its list of pages, and on one line."""
    text, _, _ = (ROOT / "README.md").read_text().partition("## Read on")
    text = re.sub(r"^```(\w*)\n.*?^```$", lambda block: block[0] if block[1] else "", text, flags=re.S | re.M)
    return " ".join(text.split())


def test_the_readme_claims_nothing_else_of_what_dies():
    text = claims_in_readme()
    for words in CLAIMS:
        assert words in text, words
        text = text.replace(words, "")
    assert [match[0] for match in DYING.finditer(text)] == []


def test_the_demo_takes_what_was_measured():
    page = (
        (ROOT / "benchmarks" / "results" / "figures.md")
        .read_text()
        .partition("## The demo")[2]
        .partition("\n## ")[0]
    )
    shortest, longest = (sum(map(int, re.findall(r"\d+", times))) for times in ("41 28 81", "83 52 116"))
    assert all(
        words in page
        for words in ("41 s of fine-tuning", "28 s of reward", "81 s of PPO", "83, 52 and\n116 s")
    )
    assert "Installation took 3 min 17 s" in page
    assert (shortest / 60, longest / 60) == (pytest.approx(2.5), pytest.approx(4.2, abs=0.1))
    assert "two and a half to four minutes](benchmarks/results/figures.md#the-demo)" in claims_in_readme()


def test_the_table_of_jobs_has_the_columns_that_kubectl_prints():
    (version,) = definition()["spec"]["versions"]
    shown = [c["name"].upper() for c in version["additionalPrinterColumns"] if not c.get("priority")]
    assert f"```\nNAME {' '.join(shown)}\n" in re.sub(" +", " ", (ROOT / "README.md").read_text())


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
