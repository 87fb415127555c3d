"""Our side of race.py, and what both sides share: the held-out scores over the seconds of training."""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

from launch import rlhf_steps
from race_tasks import TRAIN, held_out

BETAS = (0.9, 0.999)
"""Of AdamW."""
FILES = ("logs", "metrics.jsonl", "evaluation.jsonl", "timeline.jsonl")
"""What is kept of a run."""


class Point(NamedTuple):
    """An evaluation. `seconds`: of training before it, without the first step; `score`: mean over the tasks; `tokens`:
    of all responses before it."""

    side: str
    seed: int
    step: int
    seconds: float
    score: float
    tokens: int
    tasks: dict[str, float]


def point(side: str, seed: int, step: int, seconds: float, tokens: int, tasks: dict[str, float]) -> Point:
    return Point(side, seed, step, round(seconds, 3), sum(tasks.values()) / len(tasks), tokens, tasks)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def our_points(options: argparse.Namespace, seed: int, folder: Path) -> list[Point]:
    """Points of `rlhf run`, stopped after the step that follows the last evaluation."""
    workdir = folder / "run"
    try:
        rlhf_steps(manifest(options, seed, folder), workdir, options.set, sys.stderr, options.steps + 1)
    finally:
        if options.keep:
            keep(workdir, options.keep / f"ours-{seed}")
    evaluations = lines(workdir / "evaluation.jsonl")
    scores: dict[int, dict[str, float]] = {}
    for line in evaluations:
        scores.setdefault(line["step"], {})[line["set"]] = line["mean"]
    seconds, tokens, ended, points = 0.0, 0, 0.0, [point("ours", seed, 0, 0.0, 0, scores[0])]
    # The last step may have no line of the timeline yet.
    for step, times in zip(lines(workdir / "metrics.jsonl"), lines(workdir / "timeline.jsonl"), strict=False):
        number, end = step["step"], times["time"] + times["seconds"]
        if number > 1:
            whole = options.staleness or number - 1 not in scores  # ahead, generation goes on meanwhile
            seconds += end - ended if whole else times["seconds"]
        ended, tokens = end, tokens + int(step["tokens"])
        if number in scores:
            points.append(point("ours", seed, number, seconds, tokens, scores[number]))
    return points


def manifest(options: argparse.Namespace, seed: int, folder: Path) -> Path:
    last = options.steps + 2  # is never reached: it would be saved
    sets = [
        {"name": task, "data": [str(file.resolve())]} for task, file in sorted(held_out(options.rows).items())
    ]
    spec = {
        "algorithm": "grpo",
        "seed": seed,
        "steps": last,
        "model": {"dtype": options.dtype, "policy": str(options.model.resolve())},
        "data": {
            "train": [str((options.rows / TRAIN).resolve())],
            "maxPromptLength": options.prompt,
            "promptsPerStep": options.responses // options.group,
        },
        "sampling": {"maxNewTokens": options.longest, "responsesPerPrompt": options.group},
        "grpo": {"klCoefficient": 0.0, "minibatchSize": options.responses},
        "reward": {"functions": [{"function": "benchmarks.jobs.race_tasks:score"}]},
        "optimizer": {"learningRate": options.rate, "betas": list(BETAS)},
        "rollout": {"maxStaleness": options.staleness},
        "evaluation": {
            "sets": sets,
            "function": "benchmarks.jobs.race_tasks:exact",
            "everySteps": options.every,
            "samples": options.samples,
        },
        "checkpoint": {"everySteps": last},
    }
    job = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "race"}, "spec": spec}
    file = folder / "race.yaml"
    file.write_text(json.dumps(job))  # YAML as well
    return file


def keep(workdir: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for source in (workdir / name for name in FILES):
        if source.is_dir():
            shutil.copytree(source, target / source.name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, target)
