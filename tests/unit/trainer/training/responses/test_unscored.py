"""Responses without a score: left out, with baselines and advantages of what is left; and every prompt is known."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.trainer.training.running import Job, low_tokens, resumed_is_whole
from torch import Tensor

from rlhf_trainer.maths.groups import group_standardized, leave_one_out
from rlhf_trainer.tensors.records import Sequences

FOUR = "spec.data.promptsPerStep=4"
FINE = ("spec.reward.functions=[]", "spec.reward.fineGrained=true")


def failing(rows: set[int]):
    """A reward without scores for some rows of the 16 of a step: four prompts with four responses each."""

    def score(sequences: Sequences, _rows: Sequence[Mapping[str, Any]]) -> Tensor:
        scores = low_tokens(sequences, _rows)
        if len(sequences) == 16:
            scores[sorted(rows)] = torch.nan
        return scores

    return score


def make(algorithm: str, rows: set[int], *overrides: str, settings: str = "minibatchSize: 16") -> Job:
    job = Job(algorithm, settings, FOUR, *overrides, score=failing(rows))
    reasons = {row: f"judge: reason {row}" for row in rows}
    job.task._collector._reward = SimpleNamespace(failures=reasons, scores={})
    return job


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "rloo", "reinforce_pp"])
def test_responses_without_a_score_are_left_out(algorithm):
    job = make(algorithm, {0, 6, 7})
    job.task.publish(0)
    job.task.collect(0)
    columns = job.task._pending.columns
    assert len(columns) == len(job.task._pending.prompt_ids) == 13
    assert columns["position"].tolist() == [0] * 3 + [1] * 2 + [2] * 4 + [3] * 4
    assert all(bool(column.isfinite().all()) for column in (*columns.tokens.values(), *columns.rows.values()))
    job.task.train(0)
    assert job.positions("trained") == [0, 1, 2, 3]
    assert job.ledger().lost == 0


@pytest.mark.parametrize(("algorithm", "advantage"), [("grpo", group_standardized), ("rloo", leave_one_out)])
def test_advantages_are_those_of_the_group_that_is_left(algorithm, advantage):
    job = make(algorithm, {0, 6, 7}, settings="klCoefficient: 0, minibatchSize: 16")
    job.task.publish(0)
    job.task.collect(0)
    columns = job.task._pending.columns
    expected = advantage(columns["scores"], columns["position"])
    firsts = columns.lengths.cumsum(0) - columns.lengths
    torch.testing.assert_close(columns["advantages"][firsts], expected)


def test_a_prompt_without_any_score_is_dropped_with_its_reason():
    job = make("grpo", {4, 5, 6, 7, 8}).steps(0, 1)
    assert job.positions("trained") == [0, 2, 3]
    state = job.task.state()["ledger"]["dropped"]
    assert state == {"judge: reason 7": [[1, 2]]}
    assert (job.ledger().dropped, job.ledger().lost) == (1, 0)


def test_scores_of_tokens_may_be_missing_too():
    def per_token(sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        return torch.repeat_interleave(failing({1, 2})(sequences, rows), sequences.response_lengths)

    job = Job("ppo", "minibatchSize: 16", FOUR, *FINE, score=per_token).steps(0, 1)
    assert job.lines[0]["reward_mean"] == job.lines[0]["reward_mean"], "not NaN"
    assert job.positions("trained") == [0, 1, 2, 3]


def test_an_episode_that_was_scored_otherwise_than_the_job_now_asks_for_is_asked_for_again():
    """A suspended job may change its rewards; to score responses takes the rows of their prompts."""

    def per_token(sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        assert len(rows) == len(sequences)
        return torch.repeat_interleave(low_tokens(sequences, rows), sequences.response_lengths)

    before = Job("ppo", "minibatchSize: 16", FOUR).steps(0, 1)
    before.task.publish(1)
    before.task.collect(1)
    after = Job("ppo", "minibatchSize: 16", FOUR, *FINE, score=per_token).restore(before.snapshot(1))
    after.steps(1, 2)
    assert after.positions("trained") == after.positions("issued") == before.positions("issued")
    assert (after.ledger().lost, after.ledger().dropped) == (0, 0)


def test_dynamic_sampling_compares_what_has_a_score():
    """A group is judged by the scores that it has."""
    settings = "klCoefficient: 0, minibatchSize: 16, dynamicSampling: 1"

    def flat_but_one(sequences: Sequences, _rows: object) -> Tensor:
        scores = torch.arange(len(sequences)) % 2
        scores = scores.float()
        if len(sequences) == 16:
            scores[4:8] = torch.tensor([1.0, torch.nan, 1.0, 1.0])
        return scores

    job = Job("grpo", settings, FOUR, score=flat_but_one).steps(0, 1)
    assert job.positions("filtered") == [1]
    assert job.positions("trained") == [0, 2, 3, 4]
    assert job.ledger().lost == 0


def test_a_resumed_run_is_exact():
    resumed_is_whole(lambda: make("grpo", {0, 4, 5, 6, 7}), stop=2, end=3)


def test_figures_of_the_rewards_are_the_steps():
    job = make("grpo", {0})
    job.task._metrics._reward = SimpleNamespace(
        take_metrics=lambda: {"reward_judge_mean": 0.25, "responses_dropped": 1}
    )
    job.steps(0, 1)
    assert job.lines[0]["reward_judge_mean"] == 0.25
    assert job.lines[0]["responses_dropped"] == 1
