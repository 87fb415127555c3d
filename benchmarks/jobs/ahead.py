"""Generation ahead of training: the sentiment example's PPO with a vLLM generator at several bounds, in turns.

    .venv/bin/python benchmarks/jobs/ahead.py --policy runs/sft/policy --reward runs/reward/policy [--staleness 0 1 4]

Starts from the models of `make demo`. Prints for each bound and seed the share of positive responses to held-out
prompts, responses a second of the median step, the shares of it in which trainer and generator waited, and the greatest
age of a trained token in weight versions.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from algorithms import EXAMPLE, judged
from launch import rlhf_run

WARM = 3
"""First steps of a run that are not timed."""


def run(
    staleness: int, seed: int, options: argparse.Namespace, folder: Path
) -> tuple[float, dict[str, float]]:
    """The judged share after training, and the figures of the median step."""
    workdir = folder / f"{staleness}-{seed}"
    sets = (
        *(f"spec.model.policy={options.policy}", f"spec.model.reward={options.reward}"),
        *("spec.evaluation=null", f"spec.steps={options.steps}", f"spec.seed={seed}"),
        f"spec.rollout.maxStaleness={staleness}",
        *options.set,
    )
    rlhf_run(EXAMPLE / "ppo.yaml", workdir, sets, subprocess.DEVNULL)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()][WARM:]
    spec = json.loads((workdir / "run.json").read_text())["spec"]
    count = spec["data"]["promptsPerStep"] * spec["sampling"].get("responsesPerPrompt", 1)
    seconds = statistics.median(row["seconds"] for row in rows)
    return judged(workdir / "policy", seed), {
        "rate": count / seconds,
        "trainer": total(rows, "generate_seconds") / total(rows, "seconds"),
        "generator": idle(rows) / total(rows, "seconds"),
        "age": max(row.get("staleness_max", row["staleness"]) for row in rows),
    }


def idle(rows: list[dict[str, Any]]) -> float:
    """Seconds without a request under way; without a window, all but those of generation."""
    if "generators_idle_seconds" in rows[0]:
        return total(rows, "generators_idle_seconds")
    return total(rows, "seconds") - total(rows, "generate_seconds")


def total(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, default=Path("runs/sft/policy"))
    parser.add_argument("--reward", type=Path, default=Path("runs/reward/policy"))
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="more of the manifest")
    options = parser.parse_args()
    print("| maxStaleness | seed | positive | responses/s | trainer waits | generator idle | oldest token |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rates: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            for staleness in options.staleness:
                share, measured = run(staleness, seed, options, Path(folder))
                rates.setdefault(staleness, []).append(measured["rate"])
                print(
                    f"| {staleness} | {seed} | {share:.2f} | {measured['rate']:.1f} | {measured['trainer']:.0%} | "
                    f"{measured['generator']:.0%} | {measured['age']:g} |",
                    flush=True,
                )
    first = options.staleness[0]
    for staleness in options.staleness[1:]:
        ratios = [a / b for a, b in zip(rates[staleness], rates[first], strict=True)]
        print(f"responses/s at {staleness} by those at {first}: {', '.join(f'{r:.2f}' for r in ratios)}")


if __name__ == "__main__":
    main()
