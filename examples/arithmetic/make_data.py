"""Writes the data sets of this example: sums of four digits.

    python -m examples.arithmetic.make_data [DIRECTORY]

The same files every time. Half of the answers to imitate are right, the others one too high.

    sft.jsonl      {"prompt", "answer"}
    prompts.jsonl  {"prompt", "answer"}: to train on; the reward compares with the answer
    heldout.jsonl  {"prompt", "answer"}: in none of the others
"""

import random
import sys
from pathlib import Path

from examples.sorting.make_data import HELDOUT, PROMPTS, SFT, DataSets, spaced, write

SEED = 20241124


def row(digits: str, answer: int) -> dict[str, str]:
    return {"prompt": f"add{spaced(digits)} :", "answer": spaced(str(answer))}


def data_sets() -> DataSets:
    every = [f"{number:04}" for number in range(10_000)]
    drawn = [
        (digits, sum(map(int, digits)))
        for digits in random.Random(SEED).sample(every, SFT + PROMPTS + HELDOUT)
    ]
    right = [row(digits, total) for digits, total in drawn[SFT:]]
    return {
        "sft.jsonl": [row(digits, total + n % 2) for n, (digits, total) in enumerate(drawn[:SFT])],
        "prompts.jsonl": right[:PROMPTS],
        "heldout.jsonl": right[PROMPTS:],
    }


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, data_sets())
