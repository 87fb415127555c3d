"""The manifest of the job that fails: PPO of a tiny model with a reward, a reference and checkpoints of every step."""

import json
from pathlib import Path
from typing import Any

from tests.faults.matrix.cells import BY_ROLE, EPISODES, GPU, HANG_SECONDS, STALENESS, TURNS, Mode
from tests.support.servers.seaweed import Server

PROMPTS, PER_STEP = 4096, 8
ENVIRONMENT = {
    "path": "tests.faults.matrix.answering:Answering",
    "turns": 3,
    "maxTokens": 64,
    "turnSeconds": 5,
    "workers": 1,
}


def document(
    mode: Mode, folder: Path, policy: Path, store: Server, *, begun: bool, generators: int
) -> dict[str, object]:
    """Of the job of two ranks on this machine, with its prompts in `folder`; the rest as `running.running` has it."""
    write_prompts(folder / "prompts.jsonl")
    spec = specification(mode, policy=str(policy), prompts=str(folder / "prompts.jsonl"))
    spec["generator"]["replicas"] = generators
    ranks = 1 if mode == GPU else 2
    spec["trainer"] |= {
        "processesPerReplica": ranks,
        "deepspeed": {"zero_optimization": {"stage": 2}},
        "progressDeadlineSeconds": HANG_SECONDS,
    }
    if "environment" in spec:
        spec["environment"] |= {"writable": [str(folder / "run")]}  # the files of the rendezvous
    if mode == GPU:
        spec["model"]["dtype"] = "bfloat16"
        spec["generator"]["engineArguments"] = {
            "enforce-eager": True,
            "gpu-memory-utilization": 0.02,
            "kv-cache-memory-bytes": 200_000_000,
        }
    spec["checkpoint"] |= {"store": store.address.url(mode.replace(" ", "-")), "timeoutSeconds": 120}
    if begun:
        spec["sampling"] = {"maxNewTokens": 128, "responsesPerPrompt": 2}
        spec["generator"] |= {"concurrentRequests": 1}
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "faults"}}
    return {**head, "spec": spec}


def write_prompts(file: Path) -> None:
    rows = [json.dumps({"prompt": f"the {i}th thing is"}) for i in range(PROMPTS)]
    file.write_text("\n".join(rows))


def specification(mode: Mode, policy: str, prompts: str) -> dict[str, Any]:
    """The job of every cell, its model and its data as a manifest names them."""
    # A window of a second: each fault finds the budget as if it were the first.
    again = {"backoffLimit": 100, "backoffWindowSeconds": 1}
    plays, by_role = mode == EPISODES or mode in BY_ROLE, {"replicas": 2, **again} if mode in BY_ROLE else {}
    return {
        "algorithm": "ppo",
        "steps": 100_000,
        "seed": 5,
        "model": {"policy": policy, "dtype": "float32"},
        "data": {
            "train": [prompts],
            "maxPromptLength": 32,
            "promptsPerStep": PER_STEP,
        },
        "sampling": {"maxNewTokens": 16 if plays else 64},
        "ppo": {"minibatchSize": 4},
        # Many steps may be made while a role hangs or starts: their responses are to be in the newest snapshot.
        "replay": {"maxReplayEpisode": 400, "samplesPerStep": 1},
        "optimizer": {"learningRate": 1e-5},
        "rollout": {"maxStaleness": STALENESS[mode]},
        **({"placement": "shared"} if mode == TURNS else {}),
        **({"environment": {**ENVIRONMENT, **by_role}} if plays else {}),
        "trainer": {**again},
        "generator": {**again, "replicas": 2, "timeoutSeconds": 60},
        "reference": again,
        "reward": {
            **again,
            "functions": [{"function": "tests.faults.matrix.reward:shorter", "concurrency": 1}],
        },
        "weights": {"bucketMegabytes": 1, "timeoutSeconds": 10.0},
        "checkpoint": {"everySteps": 1},
    }
