"""Writes the data sets of this example: digits in any order, to be put in order.

    python make_data.py [DIRECTORY]

The same files every time. Half of the answers to imitate are sorted, half are the digits in any order, so that a policy
fine-tuned on them knows what an answer looks like and is right half of the time; the rest is left to the reward.

    sft.jsonl      {"prompt", "answer"}
    prompts.jsonl  {"prompt"}: to train on
    heldout.jsonl  {"prompt"}: in none of the others
"""

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path

SEED = 20241123
DIGITS, LENGTHS = "0123456789", (4, 5, 6)
SFT, PROMPTS, HELDOUT = 6000, 1000, 100

DataSets = dict[str, list[dict[str, str]]]
"""The rows of each file, by its name."""


def spaced(digits: Iterable[str]) -> str:
    """Digits as words, each with the space before it, so that each is one token."""
    return "".join(f" {digit}" for digit in digits)


def data_sets() -> DataSets:
    """The rows of every file."""
    rng = random.Random(SEED)
    drawn: dict[str, list[str]] = {}
    while len(drawn) < SFT + PROMPTS + HELDOUT:
        digits = rng.sample(DIGITS, rng.choice(LENGTHS))
        drawn[f"sort{spaced(digits)} :"] = digits
    prompts = list(drawn)
    sft = [
        {
            "prompt": prompt,
            "answer": spaced(
                sorted(drawn[prompt]) if n % 2 else rng.sample(drawn[prompt], len(drawn[prompt]))
            ),
        }
        for n, prompt in enumerate(prompts[:SFT])
    ]
    return {
        "sft.jsonl": sft,
        "prompts.jsonl": [{"prompt": prompt} for prompt in prompts[SFT : SFT + PROMPTS]],
        "heldout.jsonl": [{"prompt": prompt} for prompt in prompts[SFT + PROMPTS :]],
    }


def write(directory: Path, sets: DataSets) -> None:
    for name, rows in sets.items():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, data_sets())
