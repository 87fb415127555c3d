"""Steps that stop the prompts whose responses are complete last: what they train on, and what metrics say of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.unit.trainer.replay.ppo_worker import Generators
from tests.unit.trainer.training.running import Call, Job, low_tokens
from torch import Tensor

from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.scoring.reward_client import RewardClient
from rlhf_trainer.tensors.records import Prompt, Sequences

OVER = (
    "spec.generator.sharedWithTrainer=false",
    "spec.rollout.oversampling=0.5",
    "spec.data.promptsPerStep=4",
)


class Stopping(Generators):
    """In place of the generators: prompts whose row is even are complete last."""

    def stream(self, prompts: list[Prompt], size: int | None, **more: Any) -> Iterator[Responses]:
        first = sorted(prompts, key=lambda prompt: int(prompt.id[2:]) % 2 == 0)[: more["enough"]]
        yield from super().stream([p for p in prompts if p in first], size)
        yield Responses(stopped=[p.id for p in prompts if p not in first])

    def answer(self, prompts: list[Prompt], *_: Any, **more: Any) -> Responses:
        whole, rest = self.stream(prompts, None, **more)
        return replace(rest, rollouts=whole.rollouts)


def stopping(settings: str, *overrides: str, score: Call = low_tokens) -> Job:
    return Job(
        *("grpo", f"klCoefficient: 0, {settings}", *OVER, *overrides),
        score=score,
        rollouts=lambda ctx, models: Stopping(ctx, models["policy"]),
    )


def test_the_metric_says_which_steps_are_of_prompts_that_were_stopped():
    job = stopping("minibatchSize: 16", "spec.steps=5").steps(0, 5)
    shares = [line["stopped_share"] for line in job.lines]
    assert shares == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])
    assert job.positions("trained") == job.positions("issued") == list(range(20))
    assert job.ledger().lost == 0


def test_a_resumed_run_asks_what_the_whole_one_does():
    def made() -> Job:
        return stopping("minibatchSize: 16", "spec.steps=5")

    whole, cut = made().steps(0, 5), made().steps(0, 2).snapshot(2)
    after = made().restore(cut).steps(2, 5)
    assert after.task.state() == whole.task.state()


def test_fresh_prompts_replace_filtered_groups_and_each_is_trained_on_or_filtered_once():
    """All responses to the prompt of every fifth row have one score."""

    def score(sequences: Sequences, rows: Any) -> Tensor:
        return low_tokens(sequences, rows) * torch.tensor(
            [float(int(row["prompt"][1:]) % 5 > 0) for row in rows]
        )

    job = stopping("minibatchSize: 16, dynamicSampling: 4", "spec.steps=5", score=score).steps(0, 5)
    trained, filtered = job.positions("trained"), job.positions("filtered")
    assert len(trained) == 20
    assert filtered
    assert sorted([*trained, *filtered]) == job.positions("issued")
    assert (job.ledger().lost, job.task.state()["held"]) == (0, [])


def test_minibatches_as_they_come_stop_the_last_ones_too():
    job = stopping("minibatchSize: 8", "spec.replay.streamDataLoaderType=dynamic", "spec.steps=5").steps(0, 5)
    assert job.positions("trained") == list(range(20))
    assert job.lines[0]["stopped_share"] == pytest.approx(1 / 3)


def test_scores_that_were_begun_of_a_stopped_prompt_are_forgotten():
    job = stopping("minibatchSize: 16", "spec.steps=3")
    client: Any = RewardClient.__new__(RewardClient)
    client._begun = {b"of a stopped prompt": 1}
    job.task._collector._reward = client
    client.scores, client.failures = {}, {}
    job.steps(0, 1)
    assert client._begun == {}
