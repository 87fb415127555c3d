"""The main job end to end on a task made here: a model from scratch learns to add, by examples and then by PPO.

    .venv/bin/python benchmarks/arithmetic.py [--shape small] [--sft-steps 800] [--steps 60] [--shared]

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
        (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def manifest(name: str, spec: dict[str, Any]) -> Path:
    document = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name},
        "spec": {"algorithm": name, "seed": 1, **spec},
    }
    file = FOLDER / f"{name}.yaml"
    file.write_text(json.dumps(document, indent=1))  # YAML as well
    return file


def sft(shape: str, dtype: str, steps: int) -> Path:
    config = {
        **SHAPES[shape],
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    spec = {
        "steps": steps,
        "model": {
            "dtype": dtype,
            "create": {"modelType": "llama", "config": config, "tokenizer": {"vocabSize": 260}},
        },
        "data": {
            "train": [f"{FOLDER}/sft.jsonl"],
            "maxPromptLength": 16,
            "maxAnswerLength": 8,
            "promptsPerStep": 256,
        },
        "optimizer": {
            "learningRate": RATES[shape],
            "schedule": "cosine",
            "warmupSteps": 20,
        },
        "checkpoint": {"everySteps": steps},
    }
    return manifest("sft", spec)


def ppo(shape: str, dtype: str, steps: int, shared: bool) -> Path:
    spec = {
        "steps": steps,
        "model": {"dtype": dtype, "policy": f"{FOLDER}/sft/policy"},
        "data": {"train": [f"{FOLDER}/prompts.jsonl"], "maxPromptLength": 16, "promptsPerStep": 512},
        "sampling": {"maxNewTokens": 8},
        "ppo": {"klCoefficient": 0.005, "gaeLambda": 1.0, "minibatchSize": 256, "epochs": 2},
        "reward": {"functions": [{"function": "benchmarks.arithmetic:correct"}]},
        "optimizer": {
            "learningRate": RATES[shape] / 20,
            "criticLearningRate": RATES[shape] / 3,
            "warmupSteps": 3,
        },
        "evaluation": {
            "data": [f"{FOLDER}/heldout.jsonl"],
            "function": "benchmarks.arithmetic:correct",
            "everySteps": 10,
        },
        "generator": {"sharedWithTrainer": shared},
        "checkpoint": {"everySteps": max(10, steps // 2)},
    }
    return manifest("ppo", spec)


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
    parser.add_argument(
        "--set", action="append", default=[], metavar="spec.path=value", help="for the PPO part"
    )
    options = parser.parse_args()
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    make_data()
    parts = {
        "sft": (sft(options.shape, dtype, options.sft_steps), []),
        "ppo": (ppo(options.shape, dtype, options.steps, options.shared), options.set),
    }
    for name in options.parts:
        file, overrides = parts[name]
        shutil.rmtree(FOLDER / name, ignore_errors=True)  # an earlier run's
        began = time.monotonic()
        rlhf_run(file, FOLDER / name, overrides, sys.stderr)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    if "ppo" not in options.parts:
        return
    print(table(read(FOLDER / "ppo/metrics.jsonl"), 512))
    rows = read(FOLDER / "ppo/evaluation.jsonl")
    print("right answers: " + ", ".join(f"{row['mean']:.3f} after step {row['step']}" for row in rows))


if __name__ == "__main__":
    main()
