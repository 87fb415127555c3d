"""Does it learn? The sentiment chain for several seeds, judged by a word list that training never sees.

    .venv/bin/python benchmarks/learning.py [--seeds 1 2 3]

Each seed makes its own model, fine-tunes it, trains its own reward model and runs 40 PPO steps. Prints the share of
positive answers to held-out prompts before, during and after.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from launch import rlhf_run

EXAMPLE = Path("examples/sentiment")


def run(name: str, folder: Path, *overrides: str) -> float:
    """Seconds that a part of the chain took."""
    began = time.monotonic()
    rlhf_run(EXAMPLE / f"{name}.yaml", folder / name, overrides, subprocess.DEVNULL)
    return time.monotonic() - began


def chain(seed: int, folder: Path) -> tuple[dict[int, float], list[float]]:
    """The judged share after each evaluated step, and the seconds of each part."""
    policy, reward = (f"{folder / name / 'policy'}" for name in ("sft", "reward"))
    seconds = [
        run("sft", folder, f"spec.seed={seed}"),
        run("reward", folder, f"spec.seed={seed}", f"spec.model.policy={policy}"),
        run("ppo", folder, f"spec.seed={seed}", f"spec.model.policy={policy}", f"spec.model.reward={reward}"),
    ]
    rows = [json.loads(line) for line in (folder / "ppo" / "evaluation.jsonl").read_text().splitlines()]
    return {row["step"]: row["mean"] for row in rows}, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    for i, seed in enumerate(parser.parse_args().seeds):
        with tempfile.TemporaryDirectory() as folder:
            shares, seconds = chain(seed, Path(folder))
        if i == 0:
            print("| seed |" + "".join(f" step {step} |" for step in shares) + " seconds: sft, reward, ppo |")
            print("| --- |" + " --- |" * (len(shares) + 1))
        parts = ", ".join(f"{each:.0f}" for each in seconds)
        print(
            f"| {seed} |" + "".join(f" {share:.2f} |" for share in shares.values()) + f" {parts} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
