"""Dynamic sampling: groups whose responses all have one score give way to fresh prompts, and every prompt is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from tests.unit.trainer.training.running import ROWS, Job, resumed_is_whole
from tests.unit.trainer.training.test_stops import Answering
from torch import Tensor

from rlhf_trainer.data.stream import epoch_order
from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.maths.groups import has_spread
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.scoring.reward_client import Unscored
from rlhf_trainer.tensors.records import Sequences

FLAT = {ROWS[i].prompt for i in (0, 3, 4, 7)}
"""Prompts that every response answers equally well."""
SETTINGS = "klCoefficient: 0, minibatchSize: 16"
FOUR = "spec.data.promptsPerStep=4"


def scored(sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """One score for all responses to flat prompts; else two scores, by turns."""
    assert len(sequences) == len(rows)
    return torch.tensor([0.5 if row["prompt"] in FLAT else float(i % 2) for i, row in enumerate(rows)])


def same(sequences: Sequences, _rows: object) -> Tensor:
    return torch.ones(len(sequences))


def make(rounds: int, score=scored, *overrides: str, **more) -> Job:
    return Job("grpo", f"{SETTINGS}, dynamicSampling: {rounds}", FOUR, *overrides, score=score, **more)


def simulated(rounds: int, steps: int, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    """Positions that each step trains on, and those that are filtered, by the rule alone."""

    def flat(position: int) -> bool:
        epoch, place = divmod(position, len(ROWS))
        return ROWS[epoch_order(len(ROWS), seed, epoch)[place]].prompt in FLAT

    at, trained, filtered = 0, [], []
    for _ in range(steps):
        chosen: list[int] = []
        for left in range(rounds, -1, -1):
            batch = list(range(at, at + 4 - len(chosen)))
            at += len(batch)
            good = [p for p in batch if not flat(p)]
            if not left and not chosen and not good:
                good = batch
            chosen += good
            filtered += [p for p in batch if p not in good]
            if len(chosen) == 4:
                break
        trained.append(chosen)
    return trained, filtered


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_fresh_prompts_take_the_place_of_groups_without_spread(rounds):
    job, (trained, filtered) = make(rounds), simulated(rounds, 4)
    assert filtered, "the data has some"
    for step, positions in enumerate(trained):
        job.task.publish(step)
        job.task.collect(step)
        columns = job.task._pending.columns
        assert sorted(set(columns["position"].tolist())) == positions
        assert len(columns) == 4 * len(positions), "all responses of each"
        assert has_spread(columns["scores"], columns["position"]).all()
        assert columns["advantages"].abs().min() > 0
        assert job.ledger().lost == 0
        job.task.train(step)
    assert job.positions("filtered") == sorted(filtered)
    assert job.positions("trained") == sorted(p for step in trained for p in step)
    assert job.positions("issued") == sorted([*job.positions("trained"), *filtered])
    assert job.ledger().lost == 0
    assert any(report["ledger"].filtered for report in job.told if "ledger" in report), "the host hears of it"


def test_a_fresh_prompt_without_any_score_leaves_the_step_with_the_others():
    def score(sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        scores = scored(sequences, rows)
        return scores if len(sequences) == 16 else torch.full_like(scores, torch.nan)

    job = make(2, score).steps(0, 1)
    fresh = [p for p in job.positions("issued") if p >= 4]
    assert fresh, "prompts took the place of the first round's flat ones"
    assert job.positions("trained") == [p for p in simulated(2, 1)[0][0] if p < 4]
    assert (job.ledger().dropped, job.ledger().lost) == (len(fresh), 0)


def test_a_step_that_is_left_with_nothing_says_so():
    def score(sequences: Sequences, _rows: object) -> Tensor:
        calls.append(len(sequences))
        return torch.full((len(sequences),), 1.0 if len(calls) == 1 else torch.nan)

    calls: list[int] = []
    with pytest.raises(Unscored, match="no response since has any"):
        make(1, score).steps(0, 1)


class Picky(Answering):
    """Refuses the fresh prompts of later rounds."""

    first = True

    def answer(self, prompts: list[Any], *arguments: Any, **more: Any) -> Responses:
        if not self.first:
            return Responses(refused={prompt.id: "HTTP 400: too long" for prompt in prompts})
        self.first = False
        return super().answer(prompts, *arguments, **more)


def test_fresh_prompts_that_the_generators_refuse_leave_the_step_with_the_others():
    job = make(
        *(2, scored, "spec.generator.sharedWithTrainer=false"),
        rollouts=lambda ctx, models: Picky(ctx, models["policy"]),
    )
    job.steps(0, 1)
    assert job.positions("trained") == [p for p in simulated(2, 1)[0][0] if p < 4]
    assert job.task.state()["ledger"]["dropped"].keys() == {"HTTP 400: too long"}
    assert job.ledger().lost == 0


def test_without_it_groups_stay():
    job = make(0).steps(0, 3)
    assert job.positions("filtered") == []
    assert job.positions("trained") == list(range(12))


def test_it_ends_after_its_rounds_where_no_group_has_spread():
    """The last prompts are kept, so that the step has something to train on; it changes nothing."""
    job = make(2, same)
    before = job.weights()
    job.steps(0, 1)
    assert job.positions("filtered") == list(range(8))
    assert job.positions("trained") == list(range(8, 12))
    assert job.lines[0]["reward_std"] == 0
    assert job.weights() == before, "equal responses have no gradient"
    assert job.ledger().lost == 0


def test_a_resumed_run_is_exact():
    resumed_is_whole(lambda: make(2), stop=2, end=4)


def test_a_stop_in_the_middle_of_the_rounds_puts_all_prompts_back():
    calls = []

    def stops(sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        calls.append(len(rows))
        if stopping and len(calls) == 2:
            raise Stopped("the host asked for it")
        return scored(sequences, rows)

    stopping = False
    job = make(2, stops).steps(0, 2)
    before = job.task.state()
    stopping = True
    calls.clear()
    with pytest.raises(Stopped):
        job.task.collect(2)
    assert calls[0] == 16 > calls[1], "in the second round"
    assert job.task.state() == before
    assert job.task._pending is None
    assert job.ledger().lost == 0

    cut, stopping = job.snapshot(2), False
    after = make(2, stops).restore(cut).steps(2, 4)
    trained, filtered = simulated(2, 4)
    assert after.positions("trained") == sorted(p for step in trained for p in step)
    assert after.positions("filtered") == sorted(filtered)
    assert after.ledger().lost == 0


def test_fine_grained_scores_are_summed_before_groups_are_compared():
    def per_token(sequences: Sequences, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        lengths = sequences.response_lengths
        return torch.repeat_interleave(scored(sequences, rows) / lengths, lengths)

    job = make(2, per_token, "spec.reward.functions=[]", "spec.reward.fineGrained=true").steps(0, 3)
    trained, filtered = simulated(2, 3)
    assert job.positions("trained") == sorted(p for step in trained for p in step)
    assert job.positions("filtered") == sorted(filtered)
