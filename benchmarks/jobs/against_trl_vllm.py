"""GRPO here and in TRL with vLLM, each alone on one GPU: the same model, prompts, lengths, updates; samples a second.

    .venv/bin/python benchmarks/jobs/against_trl_vllm.py [--shape qwen2.5-1.5b] [--staleness 0 1] [--turns 3]

Needs `trl==1.16` and `datasets` beside vLLM. Both sides make one update of all responses of a step; theirs with weights
and moments in bfloat16 and Liger's kernels and loss, ours with float32 master weights. Ours has a vLLM server that
takes turns with the trainer on the GPU, or shares it; theirs has vLLM in its process (`colocate`). With `--turns` a
sample is an episode of turns.py's: our environment, their `rollout_func`; `--longest` and `--mean` are of a turn.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from iteration import figures, length, make_model, make_prompts, manifest
from launch import rlhf_steps
from turns import trl_rollout

WARM = 2
"""First steps that are not timed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="qwen2.5-1.5b", help="of benchmarks/generators/serving.py")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--responses", type=int, default=256)
    parser.add_argument("--group", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--mean", type=int, default=400)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--reply", type=int, default=64, help="tokens between two turns")
    parser.add_argument("--staleness", type=int, nargs="*", default=[0], help="ours; none: TRL alone")
    parser.add_argument("--micro", type=int, default=16, help="sequences that TRL forwards at once")
    parser.add_argument(
        "--part", type=float, default=0.2, help="of the GPU that TRL's vLLM fills; 0: no vLLM"
    )
    parser.add_argument("--no-liger", action="store_true", help="TRL without Liger's kernels")
    parser.add_argument("--no-trl", action="store_true", help="ours alone")
    parser.add_argument("--keep", type=Path, help="a folder for our logs")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="more of our manifest")
    parser.add_argument("--only-trl", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_trl:
        print(json.dumps(trl_steps(options.only_trl, options)))
        return
    options.algorithm = "grpo"
    sets = [f"spec.grpo.minibatchSize={options.responses}", *episodes(options), *options.set]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own: this one holds no part of the GPU.
        arguments = [sys.executable, __file__, *sys.argv[1:], "--only-trl", str(folder)]
        make(folder, options)
        for staleness in options.staleness:
            workdir, job = folder / f"run-{staleness}", manifest(folder, options, staleness)
            try:
                rlhf_steps(job, workdir, sets, sys.stderr, options.steps)
            finally:
                if options.keep and workdir.exists():
                    shutil.copytree(workdir, options.keep / job.stem, dirs_exist_ok=True)
            measured = figures(workdir / "metrics.jsonl", WARM)
            tell(
                "ours",
                measured.pop("seconds"),
                measured.pop("tokens"),
                options,
                staleness=staleness,
                **measured,
            )
        if not options.no_trl:
            # CUDA takes a GPU that is named twice for none.
            gpus = {
                name: os.environ[name].split(",")[0]
                for name in ["CUDA_VISIBLE_DEVICES"]
                if name in os.environ
            }
            done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, env=os.environ | gpus)
            seconds, tokens = json.loads(done.stdout.splitlines()[-1])
            tell("TRL", sum(seconds) / len(seconds), sum(tokens) / len(tokens), options)


def make(folder: Path, options: argparse.Namespace) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks.generators.serving import SHAPES

    make_model(folder / "model", options.shape, options.mean)
    make_prompts(folder / "prompts.jsonl", SHAPES[options.shape][5], options.prompt)


def episodes(options: argparse.Namespace) -> list[str]:
    """Our manifest's environment."""
    if options.turns == 1:
        return []
    fields = {
        "path": "benchmarks.jobs.turns:Talk",
        "turns": options.turns,
        "maxTokens": longest_completion(options),
        "settings.turns": options.turns,
        "settings.reply": options.reply,
    }
    return [f"spec.environment.{name}={value}" for name, value in fields.items()]


def longest_completion(options: argparse.Namespace) -> int:
    """Tokens after a prompt: all turns and the replies between them."""
    return options.turns * options.longest + replies(options)


def replies(options: argparse.Namespace) -> int:
    """Tokens of an episode's replies."""
    return (options.turns - 1) * options.reply


def tell(who: str, seconds: float, tokens: float, options: argparse.Namespace, **more: Any) -> None:
    rates = {"samples/s": options.responses / seconds, "tokens/s": tokens / seconds, "seconds": seconds}
    rounded = {name: round(value, 4) for name, value in {**more, **rates}.items()}
    print(json.dumps({"who": who, **rounded}), flush=True)


def trl_steps(folder: Path, options: argparse.Namespace) -> tuple[list[float], list[int]]:
    """Seconds and response tokens of each timed step of TRL's GRPOTrainer, generation and rewards included."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends: list[float] = []
    tokens: list[int] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            ends.append(time.perf_counter())
            print(f"TRL: step {len(ends)} ended at {ends[-1]:.1f}", file=sys.stderr, flush=True)

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        tokens.append(sum(map(len, completion_ids)) - len(completion_ids) * replies(options))
        return length(prompts, completions, [])

    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    model = folder / "model"
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": options.part,
        "vllm_max_model_length": options.prompt + longest_completion(options),
    }
    half = options.dtype == "bfloat16"
    config = GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=options.responses // options.micro, num_generations=options.group,
        max_completion_length=longest_completion(options), beta=0.0, learning_rate=1e-6, max_steps=options.steps,
        bf16=half, use_cpu=not half, gradient_checkpointing=False, use_liger_kernel=not options.no_liger,
        model_init_kwargs={"dtype": options.dtype}, save_strategy="no", logging_steps=1000, report_to=[],
        disable_tqdm=True, **(vllm if options.part else {}),
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        callbacks=[Clock()],
        rollout_func=trl_rollout(options.turns, options.reply, options.longest)
        if options.turns > 1
        else None,
    )
    trainer.train()
    return [b - a for a, b in itertools.pairwise(ends)][WARM - 1 :], tokens[WARM:]


if __name__ == "__main__":
    main()
