"""Whole runs whose trainer and generator take turns, without GPUs: vLLM frees nothing there, but the order is the
same."""

import json
from pathlib import Path
from typing import Any

from tests.support.rlhf import run
from tests.support.tiny.models import tiny_model

STEP = ("reward_mean", "response_length_mean", "loss", "grad_norm", "entropy", "logprob_difference_max")


def written(folder: Path) -> Path:
    tiny_model(folder / "model", tie=False, seed=1)
    rows = [{"prompt": f"the {i}th thing is"} for i in range(32)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "algorithm": "grpo",
        "steps": 4,
        "model": {"policy": str(folder / "model"), "dtype": "float32"},
        "data": {"train": [str(folder / "rows.jsonl")], "maxPromptLength": 32, "promptsPerStep": 8},
        "sampling": {"maxNewTokens": 8, "responsesPerPrompt": 4},
        "grpo": {"klCoefficient": 0.0, "minibatchSize": 16},
        "optimizer": {"learningRate": 1e-3},
        "reward": {"functions": [{"function": "tests.faults.matrix.reward:shorter"}]},
        "evaluation": {
            "data": [str(folder / "rows.jsonl")],
            "function": "tests.faults.matrix.reward:shorter",
            "everySteps": 2,
        },
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "turns"}}
    (folder / "job.yaml").write_text(json.dumps({**head, "spec": spec}))
    return folder / "job.yaml"


def figures(steps: list[dict[str, Any]]) -> list[Any]:
    """The results of a step, without its times."""
    return [[line[name] for name in STEP] for line in steps]


def test_a_run_in_turns_ends_with_the_weights_of_one_apart(tmp_path):
    job = written(tmp_path)
    shared = run(job, tmp_path / "shared", "spec.placement=shared")
    apart = run(job, tmp_path / "apart", "spec.placement=separate")
    assert (shared.code, apart.code) == (0, 0), shared.output + apart.output
    assert "placement shared, without GPUs: trainer and generator take turns" in shared.output
    assert "placement" not in apart.output
    assert len(shared.steps) == 4
    assert figures(shared.steps) == figures(apart.steps)
    saved = [(tmp_path / name / "policy" / "model.safetensors").read_bytes() for name in ("shared", "apart")]
    assert saved[0] == saved[1], "bit for bit"
    assert saved[0] != (tmp_path / "model" / "model.safetensors").read_bytes()
