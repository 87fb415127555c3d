"""TRL's side of race.py."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from race_sides import BETAS, Point, lines, point
from race_tasks import TRAIN, exact, held_out, score


class Course:
    """Training seconds and response tokens so far, and the scores since the last step, which are those of the
    evaluation once it ends."""

    def __init__(self, seed: int, out: Path) -> None:
        self._seed, self._out = seed, out
        self._seconds, self._mark, self._tokens = 0.0, 0.0, 0
        self._scores: dict[str, list[float]] = {}

    def step_ended(self, step: int) -> None:
        now = time.perf_counter()
        self._seconds += now - self._mark if step > 1 else 0.0
        self._mark = now
        self._scores.clear()

    def evaluated(self, step: int) -> None:
        means = {task: sum(each) / len(each) for task, each in self._scores.items()}
        here = point("TRL", self._seed, step, self._seconds, self._tokens, means)
        with self._out.open("a") as file:
            file.write(json.dumps(here._asdict()) + "\n")
        self._scores.clear()
        self._mark = time.perf_counter()

    def score(self, texts: list[str], rows: list[dict[str, Any]], tokens: int) -> list[float]:
        self._tokens += tokens
        for row, right in zip(rows, exact([], texts, rows), strict=True):
            self._scores.setdefault(row["task"], []).append(right)
        return score([], texts, rows)


def trl_process(seed: int, folder: Path) -> list[Point]:
    """TRL's points, in a process of its own: this one holds no part of the GPU."""
    points = folder / "points.jsonl"
    command = [sys.executable, str(Path(__file__).with_name("race.py")), *sys.argv[1:]]
    subprocess.run([*command, "--only-trl", str(points), "--seeds", str(seed)], check=True, stdout=sys.stderr)
    return [Point(**line) for line in lines(points)]


def trl_points(options: argparse.Namespace, seed: int, out: Path) -> None:
    """Trains with TRL's GRPOTrainer, and writes its points to `out`."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    course = Course(seed, out)

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            course.step_ended(state.global_step)

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            course.evaluated(state.global_step)

    def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        tasks_and_answers = zip(columns["task"], columns["answer"], strict=True)
        rows = [{"task": task, "answer": answer} for task, answer in tasks_and_answers]
        tokens = sum(map(len, completion_ids)) if trainer.model.training else 0
        return course.score([messages[0]["content"] for messages in completions], rows, tokens)

    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": options.part,
        "vllm_max_model_length": options.prompt + options.longest,
    }
    half = options.dtype == "bfloat16"
    config = GRPOConfig(
        output_dir=str(out.parent / "trl"), seed=seed, per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=options.responses // options.micro, num_generations=options.group,
        max_completion_length=options.longest, beta=0.0, learning_rate=options.rate, max_steps=options.steps,
        lr_scheduler_type="constant", adam_beta1=BETAS[0], adam_beta2=BETAS[1], weight_decay=0.0, max_grad_norm=1.0,
        bf16=half, use_cpu=not half, gradient_checkpointing=False, use_liger_kernel=options.liger,
        model_init_kwargs={"dtype": "float32"}, save_strategy="no", logging_steps=1000, report_to=[],
        eval_strategy="steps", eval_steps=options.every, eval_on_start=True, disable_tqdm=True,
        num_generations_eval=options.samples, per_device_eval_batch_size=options.responses,
        **(vllm if options.part else {}),
    )  # fmt: skip
    judged = [row for file in held_out(options.rows).values() for row in lines(file)]
    trainer = GRPOTrainer(
        model=str(options.model),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(lines(options.rows / TRAIN)),
        eval_dataset=Dataset.from_list(judged),
        processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
        callbacks=[Watch()],
    )
    trainer.train()
