"""A job whose responses are episodes of several turns, with a real vLLM: it learns, whoever dies meanwhile."""

import json
import re
from pathlib import Path

from tests.support.rlhf import Finished, lines, succeed
from tests.support.tiny.models import tiny_model

STEPS, STALENESS, TURNS = 8, 2, 3
STOPS = "ABCDEFGH"
ENVIRONMENT = """
# The reward of a turn is the share of its characters with an even code: what any model learns in a few steps. The
# first time that the rows n3 and n6 come, the process of their second turn dies and stops.
import asyncio
import os
import signal
from pathlib import Path

from rlhf_trainer.extend import Step


class Even:
    def __init__(self, turns, faults=""):
        self.left, self.faults = turns, faults

    def reset(self, row):
        self.name = row["name"]

    def _disturb(self, name, number):
        mark = Path(self.faults, name)
        if self.faults and self.name == name and self.left == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), number)

    async def step(self, message):
        await asyncio.sleep(0.2)  # so that episodes are under way at any time
        self._disturb("n3", signal.SIGKILL)
        self._disturb("n6", signal.SIGSTOP)
        text, self.left = message["content"], self.left - 1
        even = sum(ord(c) % 2 == 0 for c in text) / len(text) if text else 0.0
        return Step(f" {self.name}, {self.left} left: ", even, not self.left)
"""


BY_TRAINER = (
    "spec.generator={sharedWithTrainer: true}",
    "spec.rollout={}",
    "spec.trainer.replicas=2",
    "spec.steps=4",
)


def play(folder: Path, *overrides: str, **environ: str) -> Finished:
    tiny_model(folder / "model", tie=False, seed=0)
    rows = [{"prompt": f"Thing {i}: ", "name": f"n{i}"} for i in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "even_turns.py").write_text(ENVIRONMENT)
    environment = {
        "path": "even_turns.py:Even",
        "settings": {"turns": TURNS},
        "maxTokens": 96,
        "turnSeconds": 15,  # also on a busy machine longer than any step that goes on
        "retries": 3,
        "writable": [str(folder)],  # the marks of its faults
    }
    spec = {
        "algorithm": "grpo",
        "steps": STEPS,
        "seed": 1,
        "model": {"dtype": "float32", "policy": str(folder / "model")},
        "data": {"train": [str(folder / "rows.jsonl")], "maxPromptLength": 32, "promptsPerStep": 8},
        "sampling": {"responsesPerPrompt": 8, "maxNewTokens": 12},
        "rollout": {"maxStaleness": STALENESS},
        "grpo": {"klCoefficient": 0, "minibatchSize": 64},
        "environment": {**environment, "seconds": 120},
        "optimizer": {"learningRate": 4e-3},
        "evaluation": {"data": [str(folder / "rows.jsonl")], "everySteps": STEPS, "temperature": 0},
        "checkpoint": {"everySteps": 1},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "even"}}
    (folder / "job.yaml").write_text(json.dumps({**head, "spec": spec}))
    return succeed(folder / "job.yaml", folder / "run", *overrides, PYTHONPATH=str(folder), **environ)


def test_episodes_are_learned_from_and_lost_by_no_death(tmp_path: Path) -> None:
    """Of a process of environments, of which another one stops, of a generator, and of the trainer: all while episodes
    are under way."""
    finished = play(
        tmp_path,
        "spec.generator.replicas=2",
        f"spec.environment.settings.faults={tmp_path}",
        RLHF_FAULTS="tests.support.faults:disturb_episodes",
    )
    roles = finished.status["roles"]
    assert (roles["trainer"]["restarts"], roles["generator"]["restarts"]) == (1, 1), finished.output
    steps = {line["step"]: line for line in finished.steps}
    assert [*steps] == [*range(1, STEPS + 1)]
    assert steps[STEPS]["reward_mean"] > steps[1]["reward_mean"] + 0.2
    assert sum(line["episodes_failed"] for line in steps.values()) == 0, "no death costs a reward"
    assert {line["turns_mean"] for line in steps.values()} == {TURNS}
    assert max(line["logprob_difference"] for line in steps.values() if "logprob_difference" in line) < 1e-4
    assert max(line["staleness_max"] for line in steps.values()) <= STALENESS
    ledger = finished.status["ledger"]
    assert (ledger["lost"], ledger["dropped"]) == (0, 0)
    log = finished.log("trainer-0")
    assert "the environment's process was ended by SIGKILL" in log
    assert "(1): step took longer than 15 s" in log
    assert sum(line["responses_continued"] for line in steps.values()) > 0
    before, after = lines(finished.workdir / "evaluation.jsonl")
    assert before["count"] == after["count"] == 16
    assert after["mean"] > before["mean"], "held-out episodes have the environment's rewards"


def test_episodes_that_the_trainer_samples_are_the_same_after_its_death(tmp_path: Path) -> None:
    """By two ranks, each with environments of its own: every step is what it is without the death."""
    figures = ("reward_mean", "loss", "grad_norm", "response_length_mean", "turns_mean")
    runs = []
    for name, environ in (
        ("whole", {}),
        ("killed", {"RLHF_FAULTS": "tests.support.faults:kill_trainer_after_two_steps"}),
    ):
        (tmp_path / name).mkdir()
        finished = play(tmp_path / name, *BY_TRAINER, **environ)
        runs.append([tuple(line[key] for key in figures) for line in finished.steps])
        assert sum(line["episodes_failed"] for line in finished.steps) == 0
        assert max(line["logprob_difference"] for line in finished.steps) < 1e-5
        before, after = lines(finished.workdir / "evaluation.jsonl")
        assert after["mean"] > before["mean"]
    assert finished.status["roles"]["trainer"]["restarts"] == 1
    assert runs[0] == runs[1]


def test_episodes_are_trained_on_as_they_come_though_a_generator_dies(tmp_path: Path) -> None:
    """With minibatches of a quarter of a step, the others of which are still played. Turns end at stop strings."""
    finished = play(
        tmp_path,
        "spec.rollout={}",
        "spec.replay={streamDataLoaderType: dynamic}",
        "spec.grpo.minibatchSize=16",
        f"spec.sampling.stop=[{', '.join(STOPS)}]",
        "spec.steps=4",
        "spec.generator.replicas=2",
        RLHF_FAULTS="tests.support.faults:disturb_episodes",
    )
    assert finished.status["roles"]["generator"]["restarts"] == 1, finished.output
    assert [line["step"] for line in finished.steps] == [1, 2, 3, 4]
    assert {line["turns_mean"] for line in finished.steps} == {TURNS}
    assert sum(line["episodes_failed"] for line in finished.steps) == 0
    assert max(line["logprob_difference"] for line in finished.steps) < 1e-4
    assert finished.status["ledger"]["lost"] == finished.status["ledger"]["dropped"] == 0
    samples = lines(finished.workdir / "samples.jsonl")
    after = [text for row in samples for text in re.findall(f"[{STOPS}](..)", row["response"])]
    assert {*after} == {" n"}, "the environment's reply follows"
    assert not any({*STOPS} & {*turn["text"]} for row in samples for turn in row["turns"]), (
        "which has not read it"
    )


def test_a_role_plays_the_same_episodes_as_processes_beside_the_trainer_whoever_dies(tmp_path: Path) -> None:
    """One process of the role is killed, the other one stops, and so do workers in them: no reward is lost, and every
    step is what it is beside the trainer without any of that."""
    figures = ("reward_mean", "loss", "grad_norm", "response_length_mean", "turns_mean")
    alone = ("spec.generator={sharedWithTrainer: true}", "spec.rollout={}", "spec.steps=4")
    role = ("spec.environment.replicas=2", f"spec.environment.settings.faults={tmp_path / 'role'}")
    runs = []
    for name, overrides, environ in (
        ("beside", (), {}),
        ("role", role, {"RLHF_FAULTS": "tests.support.faults:disturb_environments"}),
    ):
        (tmp_path / name).mkdir()
        finished = play(tmp_path / name, *alone, *overrides, **environ)
        runs.append([tuple(line[key] for key in figures) for line in finished.steps])
        assert sum(line["episodes_failed"] for line in finished.steps) == 0
    assert runs[0] == runs[1]
    assert finished.status["roles"]["environment"]["restarts"] >= 1, finished.output
    log = finished.log("trainer-0")
    assert "the connection to environment-1 ended" in log
    assert "environment's process was ended by SIGKILL" in log
