"""`rlhf samples`: prints responses that a run sampled while it trained, from its work directory or its store."""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rlhf_api.contract.samples import Sample, Turn
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.samples import SAMPLES

from ..console.exits import Misuse, print_line
from ..console.subcommands import Commands, add_command
from ..console.text import indented
from .open_store import read_checkpoint
from .sample_index import SampleIndex
from .sample_order import Order, of_steps, order_places

if TYPE_CHECKING:
    from rlhf_store.archive import Snapshot

SHOWN = 5
"""Default number of responses that are printed."""


def add_samples(commands: Commands) -> None:
    parser = add_command(commands, "samples", help="read responses of a run by step, the newest first")
    parser.add_argument(
        "store", metavar="RUN", help="a run's work directory, or the URL or directory of its checkpoint store"
    )
    parser.add_argument(
        "--step", metavar="A..B", help="only these steps: one, such as 10, or 10..20, 10.. or ..20"
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", help="only prompts that contain this text, the oldest first"
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--best", action="store_true", help="those with the highest scores first")
    order.add_argument("--worst", action="store_true", help="those with the lowest scores first")
    parser.add_argument("--limit", type=int, metavar="N", help=f"number of responses; default: {SHOWN}")
    parser.add_argument("--json", action="store_true", help="print them as JSON lines")
    parser.set_defaults(does=show)


def show(options: argparse.Namespace) -> int:
    if options.limit is not None and options.limit < 1:
        raise Misuse(f"--limit must be at least 1; got {options.limit}")
    order: Order | None = "best" if options.best else "worst" if options.worst else None
    limit = options.limit or SHOWN
    for sample in read_samples(options.store, options.step, options.prompt, order, limit):
        print_line(sample.model_dump_json() if options.json else _formatted(sample), sys.stdout)
    return 0


def read_samples(
    store: str,
    steps: str | None = None,
    prompt: str | None = None,
    order: Order | None = None,
    limit: int | None = None,
) -> list[Sample]:
    """Responses of these steps, `A`, `A..B`, `A..` or `..B`, to prompts that contain the text, no more than `limit` of
    them; the newest first, or with a `prompt` the oldest. Raises InvalidJob if there is none."""
    first, last = _steps(steps)
    with _opened(store) as index:
        columns = index.columns
        places = of_steps(columns, first, last)
        ordered = order_places(columns, places, order or ("oldest" if prompt else "newest"), None, None)
        parsed = (index.parse(place, line) for place, line in index.read_lines(ordered))
        chosen = (placed.sample for placed in parsed if placed and (prompt or "") in placed.sample.prompt)
        samples = list(islice(chosen, limit))
    if not samples:
        raise InvalidJob([Problem(store, "holds no such sample")])
    return samples


def _steps(text: str | None) -> tuple[float, float]:
    """First and last step of `A`, `A..B`, `A..` or `..B`."""
    if text is None:
        return -math.inf, math.inf
    match = re.fullmatch(r"(\d*)(\.\.)?(\d*)", text)
    if match is None or not (match[1] or match[3]) or (match[3] and not match[2]):
        raise Misuse(f"--step must be a step or a range of steps, such as 10 or 10..20; got {text!r}")
    first = int(match[1]) if match[1] else -math.inf
    return first, (int(match[3]) if match[3] else math.inf) if match[2] else first


@contextmanager
def _opened(store: str) -> Iterator[SampleIndex]:
    """The file of a work directory, or else a copy of the newest checkpoint's. Raises InvalidJob without either."""
    file = Path(store) / SAMPLES
    if file.is_file():
        file = file.resolve()
        yield SampleIndex(file.parent, name=file.name).read_all()
        return
    with TemporaryDirectory(prefix="rlhf-samples-") as folder:

        def copy(snapshot: "Snapshot") -> None:
            if SAMPLES not in snapshot.blobs:
                message = (
                    "holds no samples: none were kept (spec.samples.promptsPerStep), or its release kept none"
                )
                raise InvalidJob([Problem(f"the checkpoint of step {snapshot.step}", message)])
            snapshot.download(SAMPLES, Path(folder) / SAMPLES)

        read_checkpoint(store, copy)
        yield SampleIndex(Path(folder)).read_all()


def _formatted(sample: Sample) -> str:
    score, advantage = (
        "-" if value is None else f"{value:.4g}" for value in (sample.score, sample.advantage)
    )
    cut = "" if sample.finished else ", cut off at the limit"
    head = (
        f"step {sample.step}  prompt {sample.prompt_id}  score {score}  advantage {advantage}  "
        f"{sample.response_length} tokens{cut}  weights {sample.weight_version}"
    )
    if len(sample.rewards) > 1:
        each = (
            f"{name} {'-' if value is None else f'{value:.4g}'}" for name, value in sample.rewards.items()
        )
        head += f"\n  {'  '.join(each)}"
    text = "\n".join(map(_turn, sample.turns)) or indented(sample.response, "  > ")
    return f"{head}\n{indented(sample.prompt, '  ')}\n{text}\n"


def _turn(turn: Turn) -> str:
    """The policy's turns after `>`, with their rewards, and the environment's replies after `<`."""
    text = indented(turn.text.strip(), "  > " if turn.by == "policy" else "  < ")
    return text if turn.reward is None else f"{text}\n    reward {turn.reward:.4g}"
