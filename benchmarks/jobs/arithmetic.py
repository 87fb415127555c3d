"""The main job end to end on a task made here: a model from scratch learns to add, by examples and then by PPO.

    .venv/bin/python benchmarks/jobs/arithmetic.py [--shape small] [--sft-steps 800] [--steps 60] [--shared] \
        [--seed 1] [--staleness 0]

Fine-tunes a fresh model on sums, digit by digit, of which half are one too high, then runs PPO with actor, critic and
generator from it, rewarded where the sum is right, with the manifest that a user would write. Prints where a step's
time goes and the share of right answers to sums that neither part has seen.
"""

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHAPES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4},
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
    },
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
}
RATES = {"tiny": 3e-3, "small": 1e-3, "0.5b": 2e-4}
"""Of fine-tuning; PPO's are a twentieth of that, its critic's a third."""
FOLDER = Path("runs/arithmetic")
"""The data, and a folder for each seed."""
LARGEST = 99
EXAMPLES = 8
"""Answers to a sum, each right or one too high."""


def correct(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> list[float]:
    """1.0 for the right sum and nothing else."""
    return [float(text.strip() == row["sum"]) for text, row in zip(responses, rows, strict=True)]


def make_data() -> None:
    """Disjoint: sums to learn from, with wrong answers half of the time; sums to practise on; sums to be judged by."""
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    draw = random.Random(0)
    draw.shuffle(pairs)
    examples = [(a, b, a + b + draw.randint(0, 1)) for _ in range(EXAMPLES) for a, b in pairs[:4000]]
    exact = [(a, b, a + b) for a, b in pairs[4000:]]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, part in (("sft", examples), ("prompts", exact[:5000]), ("heldout", exact[5000:5512])):
        rows = [{"prompt": f"{a} + {b} =", "answer": f" {c}", "sum": str(a + b)} for a, b, c in part]
        file, text = FOLDER / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
        if not file.exists() or file.read_text() != text:  # a run beside this one may read it
            file.write_text(text)


def manifest(name: str, folder: Path, spec: dict[str, Any]) -> Path:
    """The job `name`, to be run in `folder`."""
    document = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name},
        "spec": {"algorithm": name, **spec},
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    file.write_text(json.dumps(document, indent=1))  # YAML as well
    return file


def sft(shape: str, dtype: str, steps: int, seed: int, folder: Path) -> Path:
    config = {
        **SHAPES[shape],
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    spec = {
        "steps": steps,
        "seed": seed,
        "model": {
            "dtype": dtype,
            "create": {"modelType": "llama", "config": config, "tokenizer": {"vocabSize": 260}},
        },
        "data": {
            "train": [f"{FOLDER}/sft.jsonl"],
            "maxPromptLength": 16,
            "maxResponseLength": 8,
            "promptsPerStep": 256,
        },
        "optimizer": {
            "learningRate": RATES[shape],
            "schedule": "cosine",
            "warmupSteps": 20,
        },
        "checkpoint": {"everySteps": steps},
    }
    return manifest("sft", folder, spec)


def ppo(shape: str, dtype: str, steps: int, seed: int, policy: Path, folder: Path, shared: bool) -> Path:
    spec = {
        "steps": steps,
        "seed": seed,
        "model": {"dtype": dtype, "policy": str(policy)},
        "data": {"train": [f"{FOLDER}/prompts.jsonl"], "maxPromptLength": 16, "promptsPerStep": 512},
        "sampling": {"maxNewTokens": 8},
        "ppo": {"klCoefficient": 0.005, "gaeLambda": 1.0, "minibatchSize": 256, "epochs": 2},
        "reward": {"functions": [{"function": "benchmarks.jobs.arithmetic:correct"}]},
        "optimizer": {
            "learningRate": RATES[shape] / 20,
            "criticLearningRate": RATES[shape] / 3,
            "warmupSteps": 3,
        },
        "evaluation": {
            "data": [f"{FOLDER}/heldout.jsonl"],
            "function": "benchmarks.jobs.arithmetic:correct",
            "everySteps": 10,
        },
        "generator": {"sharedWithTrainer": shared},
        "checkpoint": {"everySteps": max(10, steps // 2)},
    }
    return manifest("ppo", folder, spec)


def main() -> None:
    import torch
    from launch import rlhf_run
    from main_job import read, table

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--sft-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--parts", nargs="+", choices=("sft", "ppo"), default=["sft", "ppo"])
    parser.add_argument("--shared", action="store_true", help="the trainer generates itself; needs no vLLM")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--staleness", type=int, default=0, help="`rollout.maxStaleness` of the PPO part")
    parser.add_argument(
        "--set", action="append", default=[], metavar="spec.path=value", help="for the PPO part"
    )
    options = parser.parse_args()
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    make_data()
    shape, seed = options.shape, options.seed
    begun = FOLDER / f"seed-{seed}" / "sft"
    trained = begun.with_name(f"ppo-{options.staleness}")
    ahead = [f"spec.rollout.maxStaleness={options.staleness}"] if options.staleness else []
    parts = {
        "sft": (sft(shape, dtype, options.sft_steps, seed, begun), begun, []),
        "ppo": (
            ppo(shape, dtype, options.steps, seed, begun / "policy", trained, options.shared),
            trained,
            ahead + options.set,
        ),
    }
    for name in options.parts:
        file, folder, overrides = parts[name]
        shutil.rmtree(folder, ignore_errors=True)  # an earlier run's
        began = time.monotonic()
        rlhf_run(file, folder, overrides, sys.stderr)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    if "ppo" not in options.parts:
        return
    print(table(read(trained / "metrics.jsonl"), 512))
    rows = read(trained / "evaluation.jsonl")
    print("right answers: " + ", ".join(f"{row['mean']:.3f} after step {row['step']}" for row in rows))


if __name__ == "__main__":
    main()
