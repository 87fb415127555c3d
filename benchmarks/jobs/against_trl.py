"""GRPO here and in TRL, in turns on one machine: the same model, prompts, lengths and updates; samples a second.

`pip install trl==1.16 accelerate datasets`, then `python benchmarks/jobs/against_trl.py --shape 3m --rounds 3`. Each
side runs as it is shipped; with `--wait ACTIVE` or `PASSIVE` the compute threads of both spin, or sleep, while
they wait.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_trainer.models.pretrained.create import create_tokenizer

PROMPTS, GROUP, TOKENS = 8, 8, 62
SHAPES = {
    "3m": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4},
    "100m": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
}
TEXTS = [f"Question {i}: what is the sum of {i} and {7 * i % 100}? Answer:" for i in range(64)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="3m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=8, help="timed steps of each round, after two that are not"
    )
    parser.add_argument("--wait", choices=["ACTIVE", "PASSIVE"], help="OpenMP's wait policy, of both sides")
    parser.add_argument("--only-trl", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_trl:
        print(json.dumps(trl_steps(options.only_trl, options.steps)))
        return
    waiting = {"OMP_WAIT_POLICY": options.wait} if options.wait else {}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", SHAPES[options.shape])
        ours, theirs = list[float](), list[float]()
        for number in range(options.rounds):
            ours.append(rate(our_steps(model, Path(folder) / f"run{number}", options.steps, waiting)))
            theirs.append(rate(in_a_process(model, options.steps, waiting)))
            print(f"round {number + 1}: ours {ours[-1]:.1f}, TRL {theirs[-1]:.1f} samples/s", flush=True)
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        print(f"ours / TRL: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


def rate(seconds: list[float]) -> float:
    """Samples a second of the median step."""
    return PROMPTS * GROUP / statistics.median(seconds)


def make_model(folder: Path, shape: dict[str, int]) -> Path:
    """A random model with a tokenizer of its own; prints its size."""
    tokenizer = create_tokenizer(TEXTS, 1024)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, tie_word_embeddings=True, max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None, **shape,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, {torch.get_num_threads()} threads"
    )
    return folder


def length_reward(_prompts: list[str], responses: list[str], _rows: list[Any]) -> list[float]:
    """A reward that costs nothing."""
    return [response.count("a") / (1 + len(response)) for response in responses]


def our_steps(model: Path, workdir: Path, steps: int, environment: dict[str, str]) -> list[float]:
    """Seconds of each step of `rlhf run`."""
    rows = workdir.with_suffix(".jsonl")
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    manifest = workdir.with_suffix(".yaml")
    spec = {
        "algorithm": "grpo",
        "steps": steps + 2,
        "model": {"policy": str(model), "dtype": "float32"},
        "data": {"train": [str(rows)], "promptsPerStep": PROMPTS, "maxPromptLength": 64},
        "sampling": {"maxNewTokens": TOKENS, "minNewTokens": TOKENS, "responsesPerPrompt": GROUP},
        "grpo": {"minibatchSize": PROMPTS * GROUP, "klCoefficient": 0.0},
        "generator": {"sharedWithTrainer": True},
        "reward": {"functions": [{"function": "benchmarks.jobs.against_trl:length_reward"}]},
        "checkpoint": {"everySteps": steps + 2},
        "environment": environment,
    }
    job = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "grpo"}, "spec": spec}
    manifest.write_text(json.dumps(job))
    command = [sys.executable, "-m", "rlhf_operator.cli", "run", str(manifest), "--workdir", str(workdir)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    print({k: round(v, 3) for k, v in lines[-1].items() if k.endswith("seconds")}, flush=True)
    return [line["seconds"] for line in lines[2:]]


def in_a_process(model: Path, steps: int, environment: dict[str, str]) -> list[float]:
    """TRL's steps in a process of their own, as ours are."""
    command = [sys.executable, __file__, "--only-trl", str(model), "--steps", str(steps)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | environment
    )
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def trl_steps(model: Path, steps: int) -> list[float]:
    """Seconds of each optimizer step of TRL's GRPOTrainer, generation and rewards included."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP,
            max_completion_length=TOKENS, generation_kwargs={"min_new_tokens": TOKENS}, beta=0.0,
            learning_rate=1e-6, max_steps=steps + 2, use_cpu=True, bf16=False, gradient_checkpointing=False,
            save_strategy="no", logging_steps=1000, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=str(model),
            reward_funcs=lambda prompts, completions, **_: length_reward(prompts, completions, []),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": text} for text in TEXTS]),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            callbacks=[Clock()],
        )
        trainer.train()
    return [b - a for a, b in itertools.pairwise(ends)][1:]


if __name__ == "__main__":
    main()
