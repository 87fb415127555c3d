"""Runs the sentiment chain for several seeds, judged by a word list that training never sees.

    .venv/bin/python benchmarks/jobs/learning.py [--seeds 1 2 3] [--staleness 0 1 4] [--rollout proximal=sampled]

Each seed makes its own model, fine-tunes it, trains its own reward model and runs 40 PPO steps, once for each bound on
the age of trained tokens, with the fields of `spec.rollout` that are given. Prints the share of positive responses to
held-out prompts before, during and after, the highest and the mean age of a trained token in versions, and the mean
effective sample size of the correction.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from launch import rlhf_run

EXAMPLE = Path("examples/sentiment")


def run(name: str, folder: Path, *overrides: str) -> None:
    """A part of the chain, in a work directory of its own that is made anew."""
    shutil.rmtree(folder / name, ignore_errors=True)
    rlhf_run(EXAMPLE / f"{name}.yaml", folder / name, overrides, subprocess.DEVNULL)


def parts(seed: int, folder: Path) -> tuple[str, ...]:
    """Overrides that name the fine-tuned policy and the reward model, which this makes first."""
    chosen = f"spec.seed={seed}"
    run("sft", folder, chosen)
    policy, reward = (f"{folder / name / 'policy'}" for name in ("sft", "reward"))
    run("reward", folder, chosen, f"spec.model.policy={policy}")
    return chosen, f"spec.model.policy={policy}", f"spec.model.reward={reward}"


def judged(folder: Path) -> dict[int, float]:
    """The judged share after each evaluated step."""
    rows = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    return {row["step"]: row["mean"] for row in rows}


def ages(folder: Path) -> tuple[float, float, float]:
    """Of all steps' tokens: the highest age, the mean age and the correction's mean effective share, 1 without one."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    oldest = max(row.get("staleness_max", 0.0) for row in rows)
    share = statistics.fmean(row.get("importance_effective_share", 1.0) for row in rows)
    return oldest, statistics.fmean(row["staleness"] for row in rows), share


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0])
    parser.add_argument("--rollout", nargs="+", default=[], metavar="FIELD=VALUE")
    chosen, header = parser.parse_args(), False
    rollout = [f"spec.rollout.{each}" for each in chosen.rollout]
    for seed in chosen.seeds:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            overrides = parts(seed, folder)
            for bound in chosen.staleness:
                run("ppo", folder, *overrides, f"spec.rollout.maxStaleness={bound}", *rollout)
                shares, (oldest, mean, share) = judged(folder / "ppo"), ages(folder / "ppo")
                if not header:
                    steps = "".join(f" step {step} |" for step in shares)
                    print(f"| maxStaleness | seed |{steps} oldest token | mean age | effective share |")
                    print("| --- | --- |" + " --- |" * (len(shares) + 3))
                    header = True
                columns = "".join(f" {each:.2f} |" for each in shares.values())
                print(f"| {bound} | {seed} |{columns} {oldest:g} | {mean:.2f} | {share:.3f} |", flush=True)


if __name__ == "__main__":
    main()
