"""Episodes whose numbers of turns differ by a hundred times: how long generators and trainer wait for one another.

    .venv/bin/python benchmarks/jobs/long_tails.py [--staleness 0 2 4] [--oversampling 0 0.25] [--steps 12]
        [--longest 100] [--every 16] [--step-seconds 0.1]

GRPO of a tiny model with a vLLM generator and an environment whose episodes have one turn, but for those of each
`--every`-th row, which have `--longest`; turns of 4 tokens and replies of as many, each after `--step-seconds`, as of a
tool that waits for something: at 0 all that is measured is how generator and trainer share the cores. Each bound is a
run of its own, and so is each share of `--oversampling`, which is tried at bound 0 alone. One JSON line for each:
figures of the steps after the first ones, as `iteration.py` has them.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROWS, PROMPTS, RESPONSES, TURN = 64, 16, 4, 4


class Tail:
    """An environment that ends after as many turns as its row says."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def reset(self, row: Mapping[str, Any]) -> None:
        self._left = int(row["turns"])

    async def step(self, message: Mapping[str, Any]) -> tuple[str, float, bool]:
        await asyncio.sleep(self._seconds)
        self._left -= 1
        return " ok ", float(len(message["content"]) % 2), not self._left


def manifest(folder: Path, staleness: int, share: float, options: argparse.Namespace) -> Path:
    spec = {
        "algorithm": "grpo",
        "seed": 1,
        "steps": options.steps + 1,  # the last of which would be saved
        "model": {"dtype": "float32", "policy": str(folder / "model")},
        "data": {"train": [str(folder / "rows.jsonl")], "maxPromptLength": 16, "promptsPerStep": PROMPTS},
        "environment": {
            "path": "benchmarks.jobs.long_tails:Tail",
            "settings": {"seconds": options.step_seconds},
            "turns": options.longest,
            "maxTokens": 10 * TURN * options.longest,
        },
        "sampling": {"maxNewTokens": TURN, "responsesPerPrompt": RESPONSES},
        "grpo": {"klCoefficient": 0.0, "minibatchSize": PROMPTS * RESPONSES},
        "optimizer": {"learningRate": 1e-6},
        "rollout": {"maxStaleness": staleness, "oversampling": share},
        "checkpoint": {"everySteps": options.steps + 1},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "tails"}}
    file = folder / f"staleness-{staleness}-{share}.yaml"
    file.write_text(json.dumps({**head, "spec": spec}))  # YAML as well
    return file


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support
    from iteration import figures
    from launch import rlhf_steps
    from tests.support.tiny.models import tiny_model

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument("--oversampling", type=float, nargs="+", default=[0.0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--longest", type=int, default=100)
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument(
        "--warm", type=int, default=2, help="first steps that are not timed, as when processes start"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="more of the manifest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_model(
            folder / "model", tie=False, seed=0, max_position_embeddings=16 + 10 * TURN * options.longest
        )
        turns = [1 if i % options.every else options.longest for i in range(ROWS)]
        rows = [{"prompt": f"Thing {i}:", "turns": count} for i, count in enumerate(turns)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shares = {
            staleness: options.oversampling if staleness == 0 else [0.0] for staleness in options.staleness
        }
        for staleness, share in ((bound, share) for bound, of in shares.items() for share in of):
            workdir = folder / f"run-{staleness}-{share}"
            file = manifest(folder, staleness, share, options)
            rlhf_steps(file, workdir, options.set, sys.stderr, options.steps)
            measured = figures(workdir / "metrics.jsonl", options.warm)
            words = {name: round(value, 3) for name, value in measured.items()}
            print(json.dumps({"staleness": staleness, "oversampling": share, **words}), flush=True)


if __name__ == "__main__":
    main()
