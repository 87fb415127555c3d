"""Rows of the data that examples ship."""

import json

from tests.support.rlhf import ROOT

SETS = ("sft", "prompts", "heldout")


def read_rows(example: str, name: str) -> list[dict[str, str]]:
    text = (ROOT / "examples" / example / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
