"""Updates on pairs of a step's responses: whole in each, as many as prompts have one, and none of prompts without."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from tests.unit.trainer.training.running import Job, low_tokens
from torch import Tensor

from rlhf_api.dataset.rows import AnswerRow
from rlhf_trainer.tensors.records import Sequences


def of_half_of_the_prompts(sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """Scores that differ within the groups of prompts with an even number alone."""
    differs = torch.tensor([int(row["prompt"][1:]) % 2 == 0 for row in rows])
    return torch.where(differs, low_tokens(sequences, rows) + torch.rand(len(rows)), 0.5)


def updates_of(job: Job) -> list[tuple[int, int]]:
    """(sequences, rows that stay together) of each update of a step."""
    model, updates = job.models["policy"], list[tuple[int, int]]()
    update = model.update

    def recorded(sequences: Sequences, read: Any, loss: Any, rate: float, group: int = 1) -> dict[str, float]:
        updates.append((len(sequences), group))
        return update(sequences, read, loss, rate, group)

    model.update = recorded
    job.steps(0, 1)
    return updates


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ("", [(16, 2)]),
        ("minibatchSize: 8", [(4, 2)] * 4),
        ("minibatchSize: 12, epochs: 2", [(6, 2), (6, 2), (4, 2)] * 2),
    ],
)
def test_a_minibatch_counts_all_responses_and_trains_on_their_pairs(settings, updates):
    """Of 8 prompts with 4 responses each."""
    assert updates_of(Job("online_dpo", settings)) == updates


def test_prompts_whose_scores_are_equal_have_no_pair():
    job = Job("online_dpo", "minibatchSize: 8", score=of_half_of_the_prompts)
    sizes = [size for size, _ in updates_of(job)]
    even = 8 * (1 - job.lines[0]["groups_without_spread_share"])
    assert 0 < even < 8
    assert sum(sizes) == 2 * even
    assert all(sizes), "an update without a pair is left out"


def test_a_step_without_a_pair_leaves_the_policy_as_it_is():
    job = Job("online_dpo", score=lambda sequences, _rows: torch.full((len(sequences),), 0.5))
    before = job.weights()
    job.steps(0, 2)
    assert job.weights() == before
    assert job.lines[-1]["groups_without_spread_share"] == 1
    assert not {"loss", "reward_margin"} & job.lines[-1].keys()


def test_agreement_and_divergence_are_of_a_steps_first_update():
    """After which the policy is another."""
    first, last = (Job("online_dpo", f"minibatchSize: {size}").steps(0, 1).lines[0] for size in (32, 8))
    assert first["logprob_difference"] < 1e-4
    assert last["logprob_difference"] < 1e-4
    for line in (first, last):
        assert line["kl_mean"] == pytest.approx(0, abs=1e-6), "the policy is the reference"


def test_pretraining_text_is_mixed_into_updates_on_pairs():
    text = [AnswerRow(prompt="p", answer="good")]
    job = Job("online_dpo", "", "spec.pretraining={data: [x], rowsPerUpdate: 2}", text=text)
    assert updates_of(job) == [(18, 2)]
    assert job.lines[0]["pretraining_loss"] > 0
