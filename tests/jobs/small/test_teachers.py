"""Distillation with two teachers, each of the rows of one file: what is asked of whom, and that a teacher's or the
trainer's death changes nothing."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from tests.support.rlhf import Finished, launch, lines, succeed
from tests.support.tiny.models import tiny_model
from transformers import AutoModelForCausalLM

SPEC: dict[str, Any] = {
    "algorithm": "distillation",
    "steps": 3,
    "seed": 1,
    "sampling": {"responsesPerPrompt": 2, "maxNewTokens": 12, "temperature": 0.7},
    "generator": {"sharedWithTrainer": True},
    "distillation": {"minibatchSize": 8},
    "optimizer": {"learningRate": 1e-3},
    "checkpoint": {"everySteps": 1},
    # A response each, so that no sum depends on what else is asked of a teacher.
    "reference": {"microBatchTokens": 44},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teachers")
    for seed, name in enumerate(("student", "left", "right")):
        tiny_model(folder / name, tie=False, seed=seed)
    for name in ("left", "right"):
        rows = [json.dumps({"prompt": f"{name} {i}:"}) for i in range(16)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def manifest(folder: Path, **teachers: str) -> Path:
    """A manifest with these teachers, the models by their names; without any, `right` teaches all rows."""
    sources = [{"path": str(folder / f"{name}.jsonl")} for name in ("left", "right")]
    model, named = {"dtype": "float32", "policy": str(folder / "student")}, []
    if teachers:
        sources = [{**s, "teacher": name} for s, name in zip(sources, ("left", "right"), strict=True)]
        named = [{"name": name, "model": str(folder / of)} for name, of in teachers.items()]
    else:
        model["reference"] = str(folder / "right")
    spec = {
        **SPEC,
        "model": model,
        "data": {"sources": sources, "maxPromptLength": 32, "promptsPerStep": 8},
        "distillation": {**SPEC["distillation"], "teachers": named},
    }
    file = folder / f"{'-'.join(teachers.values()) or 'alone'}.yaml"
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "taught"}}
    file.write_text(json.dumps({**head, "spec": spec}))
    return file


@pytest.fixture(scope="module")
def taught(folder: Path) -> Finished:
    return succeed(manifest(folder, left="left", right="right"), folder / "taught")


def weights(finished: Finished) -> bytes:
    return (finished.workdir / "policy" / "model.safetensors").read_bytes()


def episodes(finished: Finished, path: Path) -> list[dict[str, Any]]:
    process = launch("replay", "export", str(finished.workdir), str(path))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return pq.read_table(path).to_pylist()


def test_each_response_is_judged_by_the_teacher_of_its_row(taught: Finished, folder: Path, tmp_path: Path):
    models = {
        name: AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
        for name in ("left", "right")
    }
    rows = episodes(taught, tmp_path / "rows.parquet")
    step = max(row["episode"] for row in rows)
    rows = [row for row in rows if row["episode"] == step]
    divergences: dict[str, list[float]] = {"left": [], "right": []}
    for row in rows:
        own, other = ("left", "right") if row["prompt"].startswith("left") else ("right", "left")
        prompt, response = row["prompt_tokens"], row["response_tokens"]
        tokens = torch.tensor([prompt + response])
        for name in (own, other):
            with torch.no_grad():
                logits = models[name](tokens).logits[0, len(prompt) - 1 : -1]
            every = (logits / 0.7).log_softmax(-1)
            expected = every.gather(-1, tokens[0, len(prompt) :, None])[:, 0]
            recorded = torch.tensor(row["reference_logprobs"])
            assert torch.allclose(recorded, expected, atol=1e-4) == (name == own)
        divergences[own] += [a - b for a, b in zip(row["logprobs"], row["reference_logprobs"], strict=True)]
    assert all(divergences.values()), "rows of both files"
    for name, of_rows in divergences.items():
        metric = taught.steps[step - 1][f"teacher_{name}_kl_mean"]
        assert metric == pytest.approx(sum(of_rows) / len(of_rows), abs=1e-5)


def test_two_teachers_of_one_model_are_one_teacher_bit_for_bit(folder: Path):
    twice = succeed(manifest(folder, left="right", right="right"), folder / "twice")
    once = succeed(manifest(folder), folder / "once")
    assert weights(twice) == weights(once)
    assert [step["kl_mean"] for step in twice.steps] == [step["kl_mean"] for step in once.steps]


def test_a_teacher_that_dies_is_started_again_alone_and_nothing_is_lost(taught: Finished, folder: Path):
    """The trainer dies too, after its last checkpoint of step 2: it goes on from there."""
    fault = "tests.support.faults:kill_teacher_then_trainer"
    stricken = succeed(manifest(folder, left="left", right="right"), folder / "stricken", RLHF_FAULTS=fault)
    assert stricken.status["roles"]["reference"]["restarts"] == 1
    assert stricken.status["roles"]["trainer"]["restarts"] == 1
    assert stricken.output.count("reference-0 started") == 1
    assert stricken.output.count("reference-1 started") == 2
    assert weights(stricken) == weights(taught)
    names = ("kl_mean", "teacher_left_kl_mean", "teacher_right_kl_mean")
    for name in names:
        assert [step[name] for step in stricken.steps] == [step[name] for step in taught.steps]
    assert lines(stricken.workdir / "metrics.jsonl")[-1]["step"] == 3
