"""Runs each algorithm on the sentiment example for several seeds, judged by a word list that training never sees.

    .venv/bin/python benchmarks/jobs/algorithms.py --policy runs/sft/policy --reward runs/reward/policy [--seeds 1 2 3]

Starts from the models of `make demo`; generates in the trainer. Prints the share of positive responses to held-out
prompts before and after, and seconds a step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from launch import rlhf_run
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, ".")
from examples.sentiment.judge import positive

EXAMPLE = Path("examples/sentiment")
GROUPS = (
    *(
        "spec.data.promptsPerStep=16",
        "spec.sampling.responsesPerPrompt=4",
        "spec.optimizer.learningRate=0.001",
    ),
    *("spec.optimizer.criticLearningRate=null", "spec.ppo={}"),
)
JOBS: dict[str, tuple[str, ...]] = {
    "ppo": ("spec.algorithm=ppo",),
    "grpo": ("spec.algorithm=grpo", *GROUPS),
    "dr_grpo": ("spec.algorithm=dr_grpo", *GROUPS),
    "rloo": ("spec.algorithm=rloo", *GROUPS),
    "reinforce_pp": ("spec.algorithm=reinforce_pp", *GROUPS),
    "reinforce_pp, group baseline": (
        *("spec.algorithm=reinforce_pp", *GROUPS),
        *("spec.reinforcePp={groupBaseline: true, klIn: loss, klEstimator: k2}",),
    ),
    "gspo": ("spec.algorithm=gspo", *GROUPS),
    "cispo": ("spec.algorithm=cispo", *GROUPS),
    "grpo, DAPO's parts": (
        *("spec.algorithm=grpo", *GROUPS),
        "spec.grpo={klCoefficient: 0, clipRatioHigh: 0.28, overlongFilter: true, overlongBuffer: 8, "
        "dynamicSampling: 2}",
    ),
    "dpo": (
        "spec.algorithm=dpo",
        "spec.optimizer={learningRate: 0.0003, schedule: constant, warmupSteps: 3}",
    ),
}


def judged(model: Path, seed: int) -> float:
    """The share of positive responses to the held-out prompts."""
    rows = [json.loads(line) for line in (EXAMPLE / "heldout.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(model)
    torch.manual_seed(seed)
    prompts = [row["prompt"] for row in rows]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    out = policy.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=40)
    responses = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return statistics.mean(positive(prompts, responses, rows))


def train(name: str, seed: int, options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """The judged share after training, and the median seconds of a step."""
    manifest = EXAMPLE / ("reward.yaml" if name == "dpo" else "ppo.yaml")
    models = [f"spec.model.policy={options.policy}"]
    if name != "dpo":
        models += [
            f"spec.model.reward={options.reward}",
            "spec.generator.sharedWithTrainer=true",
            "spec.evaluation=null",
        ]
    workdir = folder / f"{name}-{seed}"
    sets = (*models, f"spec.seed={seed}", f"spec.steps={options.steps}", *JOBS[name])
    rlhf_run(manifest, workdir, sets, subprocess.DEVNULL)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return judged(workdir / "policy", seed), statistics.median(row["seconds"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, default=Path("runs/sft/policy"))
    parser.add_argument("--reward", type=Path, default=Path("runs/reward/policy"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="+", default=list(JOBS))
    options = parser.parse_args()
    before = [judged(options.policy, seed) for seed in options.seeds]
    print("| algorithm |" + "".join(f" seed {seed} |" for seed in options.seeds) + " seconds a step |")
    print("| --- |" + " --- |" * (len(options.seeds) + 1))
    print("| before |" + "".join(f" {share:.2f} |" for share in before) + " |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            results = [train(name, seed, options, Path(folder)) for seed in options.seeds]
            shares = "".join(f" {share:.2f} |" for share, _ in results)
            print(f"| {name} |{shares} {statistics.median(s for _, s in results):.2f} |", flush=True)


if __name__ == "__main__":
    main()
