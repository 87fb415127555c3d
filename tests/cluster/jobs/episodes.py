"""A job on a small policy that the trainer samples by itself, whose rows have names: what plays its episodes is the
test's."""

import json
from typing import Any

from tests.support.installed import workspace
from tests.support.kubernetes.operator import Jobs
from tests.support.tiny.models import tiny_model


def document(name: str, episodes: tuple[int, int], save: int, **spec: Any) -> dict[str, Any]:
    """A job of this name; `episodes`: prompts of a step, and responses to each; `save`: steps between checkpoints."""
    prompts, responses = episodes
    shared = {
        "algorithm": "grpo",
        "seed": 1,
        "model": {"dtype": "float32", "policy": f"{name}/model"},
        "data": {"train": [f"{name}/rows.jsonl"], "maxPromptLength": 32, "promptsPerStep": prompts},
        "sampling": {"responsesPerPrompt": responses, "maxNewTokens": 8},
        "grpo": {"klCoefficient": 0, "minibatchSize": prompts * responses},
        "generator": {"sharedWithTrainer": True},
        "checkpoint": {"store": f"s3://checkpoints/{name}", "everySteps": save},
        "pods": {"secrets": ["seaweedfs"]},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    return {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name},
        "spec": {**shared, **spec},
    }


def furnish(jobs: Jobs, name: str) -> None:
    """Makes the policy and the rows of the job."""
    folder = workspace(jobs) / name
    tiny_model(folder / "model", tie=False, seed=0)
    rows = [{"prompt": f"Thing {i}: ", "name": f"n{i}"} for i in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in folder.rglob("*"):
        file.chmod(0o755)  # another user reads them
