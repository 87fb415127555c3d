"""Shares of a PPO step's time, on this machine.

    .venv/bin/python benchmarks/jobs/main_job.py [--manifest FILE] [--steps N] [--set spec.path=value]...

Runs the manifest (the sentiment example's `ppo.yaml`, after `make demo` made its models) without evaluation, leaves
the first steps out as warm-up, and prints one table. `--metrics FILE` reads an earlier run's metrics.jsonl instead.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from launch import rlhf_run

from rlhf_api.contract.run import RunConfig
from rlhf_api.manifest.load import load

WARM_UP = 2
PHASES = ("generate", "score", "train", "broadcast")


def measure(manifest: Path, steps: int, overrides: list[str]) -> tuple[list[dict[str, Any]], int]:
    """The metrics of a fresh run, and its answers per step."""
    sets = [*overrides, "spec.evaluation=null", f"spec.steps={steps + WARM_UP}"]
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder, "run")
        rlhf_run(manifest, workdir, sets, sys.stderr)
        return read(workdir / "metrics.jsonl"), answers_per_step(workdir / "run.json")


def read(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def answers_per_step(config: Path) -> int:
    spec = RunConfig.model_validate_json(config.read_text()).spec
    return spec.data.prompts_per_step * spec.sampling.responses_per_prompt


def table(rows: list[dict[str, Any]], answers: int) -> str:
    """Totals over the steps after warm-up: seconds, share of the step, and answer tokens per second."""
    if len(rows) <= WARM_UP:
        return f"no table of {len(rows)} steps: the first {WARM_UP} warm up"
    rows = rows[WARM_UP:]
    total, tokens = sum(row["seconds"] for row in rows), sum(row["tokens"] for row in rows)
    lines = [f"{len(rows)} steps, {answers} answers each, {tokens / len(rows):.0f} answer tokens a step"]
    lines += [f"{'phase':<10} {'s/step':>8} {'share':>7} {'tokens/s':>10}"]
    seconds = {phase: sum(row[f"{phase}_seconds"] for row in rows) for phase in PHASES}
    for phase, spent in {**seconds, "rest": total - sum(seconds.values()), "step": total}.items():
        rate = f"{tokens / spent:>10,.0f}" if phase != "rest" else ""
        lines.append(f"{phase:<10} {spent / len(rows):>8.3f} {spent / total:>7.1%} {rate}".rstrip())
    lines.append(f"{answers * len(rows) / total:.1f} samples/s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--manifest", type=Path, default=Path("examples/sentiment/ppo.yaml"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="spec.path=value")
    parser.add_argument("--metrics", type=Path, help="a finished run's metrics.jsonl, instead of a new run")
    options = parser.parse_args()
    if options.metrics:
        rows, answers = read(options.metrics), answers_per_step(options.metrics.with_name("run.json"))
    else:
        load(options.manifest, options.set)  # a clear error before anything starts
        rows, answers = measure(options.manifest, options.steps, options.set)
    print(table(rows, answers))


if __name__ == "__main__":
    main()
