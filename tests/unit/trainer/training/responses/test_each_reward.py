"""Rewards that are normalised one by one: their columns in a step, in a snapshot, and where some are missing."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.trainer.training.running import Job, low_tokens, resumed_is_whole
from torch import Tensor

from rlhf_trainer.maths.groups import each_standardized
from rlhf_trainer.tensors.records import Sequences

Rows = Sequence[Mapping[str, Any]]
NAMES = ("reward/low", "reward/turns")
TWO = (
    *("spec.data.promptsPerStep=4", "spec.model.reward=null"),
    "spec.reward={functions: [{function: 'a:low'}, {function: 'a:turns', weight: 3.0}]}",
)


def together(low: Tensor, turns: Tensor) -> dict[str, Tensor]:
    return {"scores": low + 3 * turns, **dict(zip(NAMES, (low, turns), strict=True))}


def two(sequences: Sequences, rows: Rows) -> dict[str, Tensor]:
    return together(low_tokens(sequences, rows), (torch.arange(len(sequences)) % 3).float())


def without_some(sequences: Sequences, rows: Rows) -> dict[str, Tensor]:
    """One response has no score of the first reward, so none."""
    scores = two(sequences, rows)
    low = scores[NAMES[0]].clone()
    low[5] = torch.nan
    return together(low, scores[NAMES[1]])


def make(settings: str = "", score: Any = two) -> Job:
    return Job("grpo", f"klCoefficient: 0, minibatchSize: 16, normalize: each{settings}", *TWO, score=score)


def collect(job: Job, step: int) -> Any:
    job.task.publish(step)
    job.task.collect(step)
    return job.task._pending.columns


@pytest.mark.parametrize(("score", "count"), [(two, 16), (without_some, 15)])
def test_advantages_are_of_each_reward_over_the_responses_that_have_all(score, count):
    job = make(score=score)
    job.task._collector._reward = SimpleNamespace(failures={5: "low: broken"}, scores={})
    columns = collect(job, 0)
    assert len(columns) == count
    weighted = list(zip((1.0, 3.0), (columns[name] for name in NAMES), strict=True))
    expected = each_standardized(weighted, columns["position"])
    firsts = columns.lengths.cumsum(0) - columns.lengths
    assert columns["advantages"][firsts].tolist() == expected.tolist()


def test_a_resumed_run_equals_the_whole_one():
    resumed_is_whole(make, 1, 3)


def test_a_collected_step_of_a_checkpoint_is_trained_on_with_the_scores_of_each():
    def never(*_given: object) -> Tensor:
        raise AssertionError("its responses have scores")

    before = make().steps(0, 1)
    columns = collect(before, 1)
    after = make(score=never).restore(before.snapshot(1))
    assert all(torch.equal(after.task._pending.columns[name], columns[name]) for name in NAMES)
    after.steps(1, 2)
    assert after.positions("trained") == before.positions("issued")


def test_dynamic_sampling_keeps_a_group_that_one_reward_tells_apart():
    """Though its sums are equal; one in which no reward differs gives way."""

    def opposed(sequences: Sequences, _rows: Rows) -> dict[str, Tensor]:
        turns = (torch.arange(len(sequences)) % 2).float()
        if len(sequences) == 16:
            turns[4:8] = 1.0
        return together(-3 * turns, turns)

    job = make(", dynamicSampling: 1", opposed).steps(0, 1)
    assert job.positions("filtered") == [1]
    assert job.positions("trained") == [0, 2, 3, 4]
