"""Evaluation by several sets: greedy, several responses to a prompt, what cannot be judged; losses of given ones."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.forked.forks import run_ranks
from tests.unit.trainer.training.running import RANKS, Job, low_tokens
from tests.unit.trainer.training.test_stops import Answering

from rlhf_api.dataset.rows import AnswerRow, PairRow, PromptRow
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.dispatch.roster import Stopped, Unavailable
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.ops.datasets import given_columns
from rlhf_trainer.rollout.evaluation import evaluate, score_metrics
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.partial_rollout import Ended, Response
from rlhf_trainer.scoring.client import ScoringFailed
from rlhf_trainer.scoring.reward_client import Unscored
from rlhf_trainer.tensors.records import Prompt, Sequences

ROWS = [PromptRow(prompt=f"held out {i}") for i in range(5)]
BY_ONE = {"evaluation": low_tokens}
SETS = "{name: greedy, data: [a], temperature: 0}, {name: eight, data: [b], samples: 8}"


def test_each_set_is_sampled_as_it_says():
    job = Job("grpo", "", f"spec.evaluation={{function: 'a:b', sets: [{SETS}]}}")
    respond, held_out = job.task._collector.respond, {"greedy": ROWS, "eight": ROWS[:2]}
    greedy, eight = evaluate(job.ctx, held_out, respond, BY_ONE)
    again, other = evaluate(job.ctx, held_out, respond, BY_ONE)
    assert (greedy["set"], greedy["count"], eight["set"], eight["count"]) == ("greedy", 5, "eight", 16)
    assert greedy == again, "nothing is drawn"
    assert eight != other, "these are drawn each time"
    assert not any(name.startswith("best_of") for name in greedy)
    assert eight["mean"] <= eight["best_of_2"] <= eight["best_of_4"] <= eight["best_of_8"]
    assert [sample["prompt"] for sample in greedy["samples"]] == [row.prompt for row in ROWS[:4]]
    assert [sample["prompt"] for sample in eight["samples"]] == [row.prompt for row in ROWS[:2]]


def test_held_out_responses_have_no_sampling_masks():
    """Nothing is trained on them. Those of a step have masks."""
    job = Job("grpo", "", "spec.sampling.topK=5", "spec.evaluation={function: 'a:b', data: [a]}")
    collector, batch = job.task._collector, [Prompt("-1/0", (65, 66), {})]
    request = SamplingRequest(job.spec.sampling)
    held_out = collector.respond(batch, replace(request, masks=False))
    assert [rollout.kept_counts.tolist() for rollout in held_out.rollouts] == [[]] * 4
    assert all(rollout.kept_counts for rollout in job.rollouts.answer(batch, request).rollouts)


def test_an_evaluation_between_two_broadcasts_is_of_the_newest_weights():
    """The generators get them for it, and its line says which they were."""
    job = Job(
        *("grpo", "klCoefficient: 0", "spec.generator.sharedWithTrainer=false", "spec.weights.everySteps=3"),
        "spec.evaluation={function: 'a:b', data: [a]}",
        rollouts=lambda ctx, models: Answering(ctx, models["policy"]),
        held_out={"held_out": ROWS},
    )
    versions = []
    for step in range(5):
        job.task.publish(step)
        versions.append(job.rollouts.weights.version)
        if step in (0, 1, 4):
            (line,) = job.task.evaluate(step)
            versions.append(line["weight_version"])
        job.task.collect(step)
        job.task.train(step)
    assert versions == [0, 0, 0, 1, 1, 3, 3, 4], "served after each step, and evaluated after 0, 1 and 4"


class Handing(Answering):
    """Hands each response on at its end, as a client of generators does."""

    def answer(self, prompts: list[Any], request: Any, ended: Ended, **_: Any) -> Responses:
        responses = super().answer(prompts, request)
        for rollout in responses.rollouts:
            ended(rollout.prompt, Response(rollout.tokens))
        return responses


class Begun:
    """A reward client that keeps what it is to score."""

    def __init__(self) -> None:
        self.responses: list[tuple[list[int], dict[str, Any]]] = []
        self.failures: dict[int, str] = {}
        self.scores: dict[str, torch.Tensor] = {}

    def take_metrics(self) -> dict[str, float]:
        return {}

    def begin(self, one: Sequences, row: dict[str, Any]) -> None:
        self.responses.append((one.row(0).tolist(), dict(row)))


def test_responses_go_to_their_own_reward_when_they_end():
    """Those of a step to the job's, those of an evaluation to each of its metrics."""
    reward, judging, other = Begun(), Begun(), Begun()
    job = Job(
        *("grpo", "klCoefficient: 0", "spec.generator.sharedWithTrainer=false"),
        "spec.evaluation={function: 'a:b', data: [a]}",
        rollouts=lambda ctx, models: Handing(ctx, models["policy"]),
        held_out={"held_out": ROWS},
        more={"reward": reward, "judging": [judging, other]},
    )
    task = job.task
    task.publish(0)
    (line,) = task.evaluate(0)
    assert (len(judging.responses), line["count"], reward.responses) == (5, 5, [])
    assert other.responses == judging.responses
    assert {row["prompt"] for _, row in judging.responses} == {row.prompt for row in ROWS}
    task.collect(0)
    sequences = task._pending.columns.sequences
    assert sorted(tokens for tokens, _ in reward.responses) == sorted(
        sequences.row(i).tolist() for i in range(len(sequences))
    )


MISTAKE = InvalidJob([Problem("spec.evaluation.function", "the function raised KeyError: 'answer'")])


@pytest.mark.parametrize(
    "error", [Unscored("8 of 20 have no score"), Unavailable("none answers"), ScoringFailed("OOM"), MISTAKE]
)
def test_an_evaluation_that_cannot_be_judged_fails_with_the_reason_and_training_goes_on(error):
    def judge(sequences, rows):
        if len(rows) == 5:
            raise error
        return low_tokens(sequences, rows)

    job = Job("grpo", "", f"spec.evaluation={{function: 'a:b', sets: [{SETS}]}}")
    given = job.ctx, {"greedy": ROWS, "eight": ROWS[:2]}, job.task._collector.respond
    failed, fine = evaluate(*given, {"evaluation": judge})
    assert (failed["failed"], failed["count"], fine["count"]) == (str(error), 0, 16)
    assert math.isnan(failed["mean"])
    assert "failed" not in fine
    if error is MISTAKE:
        with pytest.raises(InvalidJob):
            evaluate(*given, {"evaluation": judge}, first=True)


def test_each_metric_has_its_figures_and_the_first_one_is_the_sets():
    """One that is down has no figures, and takes none from the others."""

    def down(_sequences, _rows):
        raise Unscored("9 of 10 have no score")

    def some(sequences, rows):
        return low_tokens(sequences, rows).masked_fill(torch.arange(len(rows)) < 4, math.nan)

    metrics = "[{name: a, url: 'http://h'}, {name: b, program: {command: [b]}}, {name: c, function: 'c:c'}]"
    job = Job("grpo", "", f"spec.evaluation={{metrics: {metrics}, data: [a], samples: 2}}")
    judges = {"a": low_tokens, "b": down, "c": some}
    (line,) = evaluate(job.ctx, {"held_out": ROWS}, job.task._collector.respond, judges)
    assert (line["mean"], line["count"], line["best_of_2"]) == (line["a_mean"], 10, line["a_best_of_2"])
    assert (line["a_count"], line["b_count"], line["c_count"]) == (10, 0, 6), "no zeros"
    assert math.isnan(line["b_mean"])
    assert line["b_failed"] == "9 of 10 have no score"
    assert not {"failed", "a_failed", "c_failed"} & line.keys()
    for sample in line["samples"]:
        assert [*sample["scores"]] == ["a", "b", "c"]
        assert (sample["score"], sample["scores"]["b"]) == (sample["scores"]["a"], None)
    (line,) = evaluate(job.ctx, {"held_out": ROWS}, job.task._collector.respond, {"b": down, "a": low_tokens})
    assert (line["failed"], line["a_count"]) == ("9 of 10 have no score", 10)
    assert math.isnan(line["mean"]), "no other metric ranks the checkpoint"


def test_an_evaluation_whose_prompts_are_all_refused_fails_with_the_reason():
    job = Job("grpo", "", "spec.evaluation={function: 'a:b', data: [a]}")
    refused = Responses(refused={f"-1/{i}": "HTTP 400: too long" for i in range(5)})
    (line,) = evaluate(job.ctx, {"held_out": ROWS}, lambda *_: refused, BY_ONE)
    assert (line["failed"], line["count"], line["samples"]) == ("HTTP 400: too long", 0, [])


def test_an_evaluation_leaves_the_random_generators_as_they_were():
    """However it ends: a run that was stopped in one goes on as if it had not been."""
    job = Job(
        "grpo", "", "spec.evaluation={function: 'a:b', data: [a], samples: 4}", held_out={"held_out": ROWS}
    )
    before = torch.get_rng_state()
    (metrics,) = job.task.evaluate(1)
    assert metrics["count"] == 20
    assert torch.equal(torch.get_rng_state(), before)


def test_greedy_responses_are_of_the_likeliest_tokens():
    job = Job("grpo", "", "spec.evaluation={function: 'a:b', data: [a], temperature: 0}")
    sequences = []

    def judge(evaluated, _rows):
        sequences.append(evaluated)
        return torch.zeros(len(evaluated))

    evaluate(job.ctx, {"held_out": ROWS}, job.task._collector.respond, {"evaluation": judge})
    (evaluated,) = sequences
    model = job.models["policy"].unwrapped.eval()
    for i, prompt_length in enumerate(evaluated.prompt_lengths.tolist()):
        tokens = evaluated.row(i)
        with torch.no_grad():
            logits = model(tokens[None]).logits[0]
        assert logits[prompt_length - 1 : -1].argmax(-1).tolist() == tokens[prompt_length:].tolist()


def test_other_ranks_take_part_and_have_no_figures():
    job = Job("grpo", "", "spec.evaluation={function: 'a:b', data: [a]}")
    assert RANKS.first
    assert evaluate(job.ctx, {"held_out": ROWS}, job.task._collector.respond, {}) == []


def test_what_has_no_score_is_left_out_of_the_figures():
    scores = torch.tensor([1.0, math.nan, 0.0, 0.0, 1.0, math.nan])
    groups = torch.tensor([0, 0, 0, 1, 1, 2])
    assert score_metrics(scores, groups) == {"mean": 0.5, "count": 4, "best_of_2": 1.0}
    assert score_metrics(scores[[1, 5]], groups[[1, 5]])["count"] == 0
    three = score_metrics(torch.arange(3.0), torch.zeros(3, dtype=torch.int64))
    assert [name for name in three if name.startswith("best_of")] == ["best_of_2", "best_of_3"]


HELD_OUT = {
    "sft": [AnswerRow(prompt=f"q{i}", answer="a" * i) for i in range(1, 6)],
    "dpo": [PairRow(prompt=f"q{i}", pos_answers=["yes", "y"], neg_answers=["no", "n"]) for i in range(3)],
}


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_given_responses_are_evaluated_by_their_loss(algorithm):
    """The loss is of the whole set, whatever the micro-batches, and nothing is trained."""
    held_out, few = HELD_OUT[algorithm], HELD_OUT[algorithm][:1]
    sets = "spec.evaluation={sets: [{name: all, data: [a]}, {name: few, data: [b]}]}"
    job = Job(algorithm, "", sets, rows=held_out, held_out={"all": held_out, "few": few})
    before = job.task.evaluate(0)
    job.steps(0, 2)
    weights, state = job.weights(), job.task.state()
    every, one = job.task.evaluate(2)
    assert (job.weights(), job.task.state()) == (weights, state)
    assert (every["set"], one["set"]) == ("all", "few")
    assert every["loss"] < before[0]["loss"]

    (model,) = job.models.values()
    kind = job.task._source.rows
    sequences = given_columns(kind, held_out, job.ctx.tokenizer, job.spec.data)[0].sequences
    logprobs = model.infer(sequences, ResponseLogprobs(), sequences.response_lengths)
    if algorithm == "sft":
        assert (every["count"], one["count"]) == (5, 1)
        assert every["loss"] == pytest.approx(-logprobs.mean().item(), abs=1e-6)
        return
    assert (every["count"], one["count"]) == (6, 2), "pairs"
    assert before[0]["loss"] == pytest.approx(math.log(2), abs=1e-6), "policy and reference are the same"
    assert before[0]["reward_margin"] == pytest.approx(0, abs=1e-6)
    gained = logprobs - job.reference(sequences, None)
    sums = torch.stack([part.sum() for part in gained.split(sequences.response_lengths.tolist())])
    margins = 0.1 * (sums[0::2] - sums[1::2])
    assert every["reward_margin"] == pytest.approx(margins.mean().item(), abs=1e-5)
    assert every["accuracy"] == pytest.approx((margins > 0).float().mean().item())
    assert every["loss"] == pytest.approx(-torch.nn.functional.logsigmoid(margins).mean().item(), abs=1e-5)


def test_a_stop_during_an_evaluation_loses_no_step():
    """As if it had not begun: the loop goes on to its next safe point, where everything is saved."""
    calls = []

    def refer(sequences, rows):
        calls.append(len(sequences))
        if len(calls) > 2:
            raise Stopped("asked to")
        return job.reference(sequences, rows)

    sets = "spec.evaluation={sets: [{name: one, data: [a]}, {name: two, data: [b]}]}"
    rows = HELD_OUT["dpo"]
    job = Job("dpo", "", sets, refer=refer, rows=rows, held_out={"one": rows, "two": rows})
    job.steps(0, 1)
    weights, state = job.weights(), job.task.state()
    with pytest.raises(Stopped):  # the second set was stopped: no mean of the first alone
        job.task.evaluate(1)
    assert (job.weights(), job.task.state(), len(calls)) == (weights, state, 3)


def test_a_stop_while_responses_are_judged_stops_all_ranks_there(tmp_path):
    """Ranks without the judge would otherwise begin the next set and wait there for rank 0, which saves."""
    outputs = run_ranks(2, "tests.unit.trainer.training.evaluation_ranks", folder=tmp_path)
    assert outputs == ["stopped while held-out responses were judged\nsaving\n"] * 2
