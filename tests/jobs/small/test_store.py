"""A run whose checkpoints are in S3 goes on on another machine; tests/faults/chaos compares such runs bit by bit."""

import json
import os
import subprocess
import sys

from tests.support.rlhf import SENTIMENT, Finished, succeed

from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog
from rlhf_operator.page.stored.stores import find_stored_runs

JOB = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "stored"},
    "spec": {
        "algorithm": "sft",
        "steps": 4,
        "seed": 3,
        "model": {
            "dtype": "float32",
            "create": {
                "modelType": "llama",
                "config": {
                    "hidden_size": 32,
                    "intermediate_size": 64,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "max_position_embeddings": 64,
                },
                "tokenizer": {"vocabSize": 300},
            },
        },
        "data": {
            "train": [str(SENTIMENT / "sft.jsonl")],
            "maxPromptLength": 16,
            "maxResponseLength": 16,
            "overlong": "cut",
            "promptsPerStep": 8,
        },
        "optimizer": {"learningRate": 0.01},
        "checkpoint": {"everySteps": 1},
    },
}


def rlhf(*arguments: str, **environ: str) -> str:
    command = [sys.executable, "-m", "rlhf_operator.cli", *arguments]
    environment = os.environ | environ
    return subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    ).stdout


def read_stored_steps(seaweed, name, monkeypatch, folder) -> list[int]:
    """The steps whose loss the page reads from a store alone."""
    with monkeypatch.context() as patched:
        for key, value in seaweed.environment.items():
            patched.setenv(key, value)
        catalog = Catalog([], find_stored_runs([seaweed.url(name)], folder / f"{name}-copies"))
        (run,) = catalog.runs()
        assert run.summary()["steps"] == 4
        return answer(catalog, f"/runs/{run.id}/metrics", {"names": "loss"})["steps"]


def policy(run: Finished) -> bytes:
    return (run.workdir / "policy" / "model.safetensors").read_bytes()


def test_a_run_goes_on_from_s3_in_another_work_directory(seaweed, tmp_path, monkeypatch):
    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps(JOB))
    store = f"spec.checkpoint.store={seaweed.url('run')}"
    first = succeed(manifest, tmp_path / "first", store, "spec.steps=2", **seaweed.environment)
    assert first.status["lastCheckpoint"]["uri"] == seaweed.url("run")
    assert not (first.workdir / "checkpoints").exists()

    second = succeed(manifest, tmp_path / "second", store, flags=("--resume",), **seaweed.environment)
    assert [line["step"] for line in second.steps] == [1, 2, 3, 4], "figures come with the checkpoint"
    assert f"resumed from the checkpoint of step 2 in {seaweed.url('run')}" in second.log("trainer-0")
    assert second.status["lastCheckpoint"]["step"] == 4

    # A clone of the first three steps does the last one as the run itself did.
    whole, clone = tmp_path / "whole.json", tmp_path / "clone.yaml"
    checkpoint = {**JOB["spec"]["checkpoint"], "store": seaweed.url("run")}
    whole.write_text(json.dumps({**JOB, "spec": {**JOB["spec"], "checkpoint": checkpoint}}))
    clone.write_text(rlhf("clone", str(whole), "--from-step=3", **seaweed.environment))
    third = succeed(clone, tmp_path / "third", **seaweed.environment)
    assert [line["step"] for line in third.steps] == [4]
    assert third.status["lastCheckpoint"]["uri"] == seaweed.url("stored-from-3")
    assert policy(third) == policy(second)
    for name, steps in (("run", [1, 2, 3, 4]), ("stored-from-3", [4])):
        assert read_stored_steps(seaweed, name, monkeypatch, tmp_path) == steps
    for run in (first, second, third):
        for file in run.workdir.rglob("*"):
            assert not file.is_file() or seaweed.secret.encode() not in file.read_bytes(), file
