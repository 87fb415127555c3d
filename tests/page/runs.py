"""Runs for the page, in folders as runs leave them: one with samples and a store, one that failed, one that goes on,
and one of which nothing can be read."""

import datetime
import io
import math
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as arrow
from pyarrow import parquet
from tests.support.run_folders import append_lines, write_run
from tests.support.stores import damage_store, fill_store
from tokenizers import Tokenizer, models

from rlhf_api.contract import prediction, timeline
from rlhf_api.contract.timeline import Span, StepTimeline

STEPS = 60
STORED = 60
"""The step whose tokens a checkpoint has."""
HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script> {{7*7}} &lt;b&gt;'
WORDS = ("a", "quiet", "story", "told", "twice")
SAMPLED = (-1.0, -2.0, -0.5, -3.0, -0.25)
OLD = (-1.0, -1.5, -1.5, -3.1, -0.25)
"""Log-probabilities of the words, as sampled and by the trainer."""
ENTROPIES = (0.0, 0.75, 1.5, 3.0, 4.5)
ADVANTAGES = (0.8, 0.8, -0.4, -0.4, 0.0)
LEDGER = {"epoch": 0, "issued": 90, "returned": 89, "trained": 89, "requeued": 3, "dropped": 1, "lost": 0}
GIVEN_UP = "rlhf_trainer.dispatch.dispatch: giving up on prompt 0/7: three generators failed on it"
PROMPTS = ("The film about the harbour was", "The lighthouse keeper", "Nobody expected the orchard")


class Written(NamedTuple):
    folder: Path
    followed: Path


def write_runs(folder: Path) -> Written:
    kind = write_run(
        folder / "kind",
        name="kind",
        status={
            "totalSteps": STEPS,
            "reward": make_step(STEPS)["reward_mean"],
            "completionTime": "2026-01-01T00:03:20Z",
            "gpuSeconds": 5400,
            "cost": 4.5,
            "costPerHour": 3.0,
            "conditions": [make_condition("Stalled", "False"), make_condition("Complete", "True")],
        },
        steps=[make_step(step) for step in range(1, STEPS + 1)],
        evaluations=[
            {
                "step": step,
                "set": "held_out",
                "mean": step / 80,
                "samples": [{"prompt": PROMPTS[0], "answer": f"as of step {step}", "score": step / 80}],
            }
            for step in range(0, STEPS + 1, 10)
        ],
        spec={"algorithm": "grpo", "seed": 1, "optimizer": {"learningRate": 3e-4}},
    )
    (kind / "logs").mkdir()
    (kind / "logs" / "trainer-0.log").write_text("".join(make_log()))
    append_lines(kind / "samples.jsonl", make_samples())
    predicted = {
        "step": 3.2,
        "phases": {"generate": 1.1, "train": 1.3},
        "by": "runs/kinder",
        "memory": {"trainer": "2 GB: weights"},
    }
    append_lines(kind / prediction.FILE, [predicted])
    append_lines(kind / timeline.FILE, [make_times(step).model_dump() for step in range(1, STEPS + 1)])
    for step, blobs in ((STORED - 1, {}), (STORED, make_episode())):
        fill_store(kind / "checkpoints", {**blobs}, step=step)
    blunt = write_run(
        folder / "blunt",
        name="blunt",
        phase="Failed",
        status={
            "totalSteps": STEPS,
            "reward": make_step(30, 0.6)["reward_mean"],
            "message": "trainer-0 exited with code 1 three times",
            "ledger": LEDGER,
        },
        steps=[make_step(step, 0.6) for step in range(1, 31)],
        spec={
            "algorithm": "grpo",
            "seed": 2,
            "optimizer": {"learningRate": 1e-2},
            "checkpoint": {"startFrom": {"store": (kind / "checkpoints").as_uri(), "step": 20}},
        },
    )
    (blunt / "logs").mkdir()
    (blunt / "logs" / "trainer-0.log").write_text(f"{stamp(0, 1)},000 WARNING {GIVEN_UP}\n")
    empty = write_run(folder / "empty", name="empty", phase="Failed", spec={"algorithm": {"no": "text"}})
    fill_store(empty / "checkpoints", {})
    damage_store(empty / "checkpoints")
    short = [make_step(step) for step in range(1, 4)]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    generator = {
        "role": "generator",
        "name": "generator-0",
        "uid": "1",
        "ready": True,
        "weightVersion": 2,
        "epoch": 5,
    }
    status = {"startTime": now, "reward": 0.3, "weightVersion": 3, "queue": 11, "generators": [generator]}
    followed = write_run(folder / "followed", name="followed", phase="Running", steps=short, status=status)
    return Written(folder, followed)


def make_step(step: int, best: float = 1.8) -> dict[str, Any]:
    noise = random.Random(step)
    learned = 1 - math.exp(-step / 20)
    return {
        "step": step,
        "seconds": 3 + noise.random(),
        "generate_seconds": 1.2,
        "score_seconds": 0.2,
        "train_seconds": 1.1,
        "broadcast_seconds": 0.1,
        "reward_mean": best * learned + noise.gauss(0, 0.06),
        "reward_judge_mean": 0.7 * best * learned + noise.gauss(0, 0.06),
        "kl_mean": 0.01 + 0.06 * learned + noise.random() / 200,
        "entropy": 3 - learned + noise.gauss(0, 0.04),
        "response_length_mean": 30 + 8 * learned + noise.gauss(0, 0.5),
        "response_length_p99": 44 + 8 * learned + noise.gauss(0, 1),
        "finished_share": 0.8 + 0.15 * learned,
        "groups_without_spread_share": 0.25 * (1 - learned) + noise.random() / 30,
        "ratio_outside_share": 0.002 + noise.random() / 200,
        "trainer_idle_share": 0.3 + noise.gauss(0, 0.03),
        "generator_idle_share": 0.2 + noise.gauss(0, 0.03),
        "loss": 0.1 - 0.05 * learned,
    }


def make_condition(type: str, status: str) -> dict[str, Any]:
    since = "2026-01-01T00:03:20Z"
    return {"type": type, "status": status, "reason": f"Is{type}", "lastTransitionTime": since}


def make_times(step: int) -> StepTimeline:
    """Two generators, of which one ends early, and two ranks."""
    seconds = 3 + random.Random(step).random()
    spans = [
        Span("generator", "generator-0", "generate", 0.0, 1.2),
        Span("generator", "generator-1", "generate", 0.0, 0.7),
        Span("reward", "reward-0", "score", 0.4, 1.4),
    ]
    for rank in range(2):
        spans += [
            Span("trainer", rank, "wait for responses", 0.0, 1.2),
            Span("trainer", rank, "policy_logprobs", 1.2, 1.35),
            Span("trainer", rank, "wait for score", 1.35, 1.4),
            Span("trainer", rank, "train_policy", 1.4, seconds - 0.3 - rank / 5),
            Span("trainer", rank, "publish", seconds - 0.3, seconds - 0.1),
        ]
    return StepTimeline(step=step, time=1.8e9 + 4 * step, seconds=seconds, spans=tuple(spans))


def make_log() -> Iterator[str]:
    """Two starts of a trainer, the second of which went on from a checkpoint."""
    for number, (begin, end) in enumerate(((1, 24), (21, STEPS + 1))):
        at = partial(stamp, number)
        yield f"=== {at(begin)} python3 -m rlhf_trainer.torchrun\n"
        if begin > 1:
            yield f"{at(begin)},000 INFO rlhf_trainer.training.checkpoints: resumed from the checkpoint of step 20\n"
        for step in range(begin, end):
            yield f"{at(step)},500 INFO rlhf_trainer.metrics.recording: step {step}/{STEPS}: reward_mean 1\n"
            if step == 45:
                text = "warn: entropy below 2.2 for three steps"
                yield f"{at(step)},600 WARNING rlhf_trainer.training.monitor: {text}\n"


def stamp(start: int, step: int) -> str:
    return f"2026-01-01 00:{step // 15 + start:02}:{step % 15 * 4:02}"


def make_samples() -> Iterator[dict[str, Any]]:
    for step in range(51, STEPS + 1):
        for place, prompt in enumerate(PROMPTS):
            for number in range(4):
                score = round(random.Random(f"{step} {place} {number}").gauss(1, 0.5), 3)
                yield make_sample(step, prompt, f"a story kind to everyone, number {number}", score)
    yield make_sample(STEPS, PROMPTS[0], HOSTILE, -1.0)
    yield make_sample(STEPS, PROMPTS[1], " ".join(WORDS), 2.9)
    turns = [{"by": "policy", "text": "open the door"}, {"by": "environment", "text": "It is locked."}]
    yield make_sample(STEPS, "You are at a door.", "open the door", 3.0) | {"turns": turns}


def make_sample(step: int, prompt: str, response: str, score: float) -> dict[str, Any]:
    return {
        "step": step,
        "prompt_id": f"0/{PROMPTS.index(prompt) if prompt in PROMPTS else len(PROMPTS)}",
        "prompt": prompt,
        "response": response,
        "score": score,
        "rewards": {"judge": score + 0.1, "length": -0.1},
        "advantage": score - 1,
        "weight_version": step - 1,
        "prompt_length": 6,
        "response_length": len(WORDS),
    }


def make_episode() -> dict[str, bytes]:
    """The blobs of the step's checkpoint: its episode with one response, and the tokenizer that has its words."""
    count = len(WORDS)
    columns = {
        "prompt_id": ["0/1"],
        "prompt": [PROMPTS[1]],
        "response": [" ".join(WORDS)],
        "reward": [2.9],
        "reward/judge": [3.0],
        "finished": [True],
        "weight_version": [STORED - 1],
        "prompt_tokens": [[0, 1, 2]],
        "response_tokens": [list(range(count))],
        "sampled_logprobs": [SAMPLED],
        "logprobs": [OLD],
        "reference_logprobs": [SAMPLED],
        "advantages": [ADVANTAGES],
        "entropies": [ENTROPIES],
        "sampled": [[True] * count],
        "weight_versions": [[STORED - 2] * 2 + [STORED - 1] * (count - 2)],
    }
    episode = io.BytesIO()
    parquet.write_table(arrow.table(columns), episode, use_dictionary=False)
    tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="a"))
    return {
        f"episodes/{STORED:08d}.parquet": episode.getvalue(),
        "export/policy/tokenizer.json": tokenizer.to_str().encode(),
    }
