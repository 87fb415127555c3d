"""A dataset of many short rows: seconds and peak memory of a start, and of the first batches of an epoch.

    .venv/bin/python benchmarks/trainer/rows.py [--rows 10000000] [--tokenizer FOLDER]

Writes a JSONL file of so many prompts (57 bytes each) into a temporary directory, and does what the trainer does with
it: opens it, checks every row, draws the epoch's order, and reads and checks the rows of 100 batches of 64. One JSON
line, with memory beyond what the process held before: at the end of each part (`held_mb`) and the highest until then
(`peak_mb`); the index and the order of a run have 8 and 4 bytes a row. With a tokenizer that has a chat template, every
row is tokenized too, as at the start of a job; then so are conversations, whose tokens are counted.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rlhf_api.dataset.row_files import Rows
from rlhf_api.sections.data import Data, Source
from rlhf_trainer.data.dataset import open_dataset, stream
from rlhf_trainer.models.pretrained.load import load_tokenizer
from rlhf_trainer.ops.row_check import RowChecker

T = TypeVar("T")
BATCHES, PROMPTS, CONVERSATIONS = 100, 64, 4000
WRITTEN_AT_ONCE = 100_000


def write(file: Path, rows: int) -> None:
    with file.open("w") as lines:
        for begin in range(0, rows, WRITTEN_AT_ONCE):
            numbers = range(begin, min(begin + WRITTEN_AT_ONCE, rows))
            lines.writelines(f'{{"prompt": "Question number {i:8}: what follows?"}}\n' for i in numbers)


def write_conversations(file: Path) -> None:
    """A question and an answer of 150 words each, of this benchmark's own text."""
    words = Path(__file__).read_text().split()
    with file.open("w") as lines:
        for i in range(CONVERSATIONS):
            question, answer = (" ".join(random.Random(2 * i + j).choices(words, k=150)) for j in range(2))
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            lines.write(json.dumps({"messages": turns}) + "\n")


def held() -> float:
    """MB of this process's memory, without pages of files."""
    (line,) = [s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("RssAnon:")]
    return int(line.split()[1]) / 1000


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--tokenizer", help="folder of a tokenizer with a chat template")
    options = parser.parse_args()
    rows: int = options.rows
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.jsonl")
        write(file, rows)
        before, highest = held(), peak()
        measured: dict[str, float] = {"rows": rows, "file_mb": file.stat().st_size / 1e6}

        def part(name: str, work: Callable[[], T]) -> T:
            began = time.perf_counter()
            made = work()
            measured[f"{name}_s"] = time.perf_counter() - began
            measured[f"{name}_held_mb"], measured[f"{name}_peak_mb"] = held() - before, peak() - highest
            return made

        dataset = part("open", lambda: open_dataset([Source(path=str(file))], "prompts"))
        part("check", dataset.check)
        order = stream(dataset, seed=0)
        part("order", lambda: order.take(PROMPTS))
        part("batches", lambda: read(dataset, [order.take(PROMPTS) for _ in range(BATCHES)]))
        if options.tokenizer:
            tokenizer, data = load_tokenizer(options.tokenizer), Data(train=("unused",), overlong="cut")
            checker = RowChecker(dataset, "prompts", tokenizer, data)
            part("tokenize", lambda: checker.check(range(rows)))
            talk = Path(folder, "talk.jsonl")
            write_conversations(talk)
            checker = RowChecker(
                open_dataset([Source(path=str(talk))], "responses"), "responses", tokenizer, data
            )
            result = part("talk", lambda: checker.check(range(CONVERSATIONS)))
            lengths = (result.prompt_lengths, result.response_lengths)
            measured["talk_tokens"] = sum(
                length * count for each in lengths for length, count in each.items()
            )
    print(json.dumps({name: round(value, 2) for name, value in measured.items()}))


def read(dataset: Rows, batches: list[list[tuple[int, int]]]) -> None:
    for batch in batches:
        for _, row in batch:
            dataset[row]


if __name__ == "__main__":
    main()
