"""Training on episodes of several turns: what the environment replied is read, and neither learned nor measured."""

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.unit.trainer.graph.specs import ONLINE
from tests.unit.trainer.training.running import ROWS, Job, resumed_is_whole

from rlhf_trainer.rollout.from_trainer import TrainerRollouts
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.scoring.reward_client import Unscored
from rlhf_trainer.tensors.records import Outcome, Rollout

REPLY = (200, 201, 202)
PLAYS = (
    *("spec.environment={path: 'guess.py:Guess', maxTokens: 64}", "spec.model.reward=null"),
    "spec.generator.sharedWithTrainer=false",
)


def replied(rollout: Rollout, logprob: float = 0.0, version: int | None = None) -> Rollout:
    """The response with a reply after its first token, if it has more; records of the reply are given ones."""
    if len(rollout.tokens) == 1:
        return replace(rollout, outcome=Outcome(1.0, 1, ((0, 1.0),)))
    tokens, logprobs, versions = (
        values[:1] + array(values.typecode, [of_reply]) * len(REPLY) + values[1:]
        for values, of_reply in (
            (rollout.tokens, 0),
            (rollout.logprobs, logprob),
            (rollout.versions, rollout.versions[0] if version is None else version),
        )
    )
    tokens[1 : 1 + len(REPLY)] = array("i", REPLY)
    reward = float(rollout.tokens[0] < 128)
    outcome = Outcome(reward, 2, ((0, 0.0), (len(tokens) - 1, reward)))
    flags = array("b", [1] + [0] * len(REPLY) + [1] * (len(tokens) - 1 - len(REPLY)))
    counts = rollout.kept_counts
    filled = counts[:1] + array("i", [-1]) * len(REPLY) + counts[1:] if counts else counts
    return replace(
        rollout,
        tokens=tokens,
        logprobs=logprobs,
        versions=versions,
        kept_counts=filled,
        sampled=flags,
        outcome=outcome,
    )


def forked(rollout: Rollout) -> Rollout:
    """The response with a branch after its first token, if it has more, which opens with the reply."""
    made = replied(rollout)
    return replace(made, branches=array("i", [1])) if made.sampled else made


class Replying(TrainerRollouts):
    """The policy's responses, to which an environment replies."""

    def __init__(self, *arguments: Any, reply: Callable[[Rollout], Rollout]) -> None:
        super().__init__(*arguments)
        self._reply = reply

    def answer(self, *arguments: Any, **more: Any) -> Responses:
        responses = super().answer(*arguments, **more)
        return replace(responses, rollouts=[self._reply(r) for r in responses.rollouts])


def job(
    algorithm: str,
    *overrides: str,
    reply: Callable[[Rollout], Rollout] = replied,
    settings: str = "",
    **more: Any,
) -> Job:
    return Job(
        *(algorithm, settings, *PLAYS, *overrides),
        rollouts=lambda ctx, models: Replying(ctx, models["policy"], reply=reply),
        **more,
    )


@pytest.mark.parametrize("algorithm", ONLINE)
def test_records_of_replies_change_nothing(algorithm):
    """No log-probability of theirs, whatever it is, nor weight version, is in a weight or a figure."""
    plain = job(algorithm, "spec.sampling.topK=5").steps(0, 2)
    odd = job(
        algorithm, "spec.sampling.topK=5", reply=lambda rollout: replied(rollout, math.nan, -1000)
    ).steps(0, 2)
    assert odd.weights() == plain.weights()
    for one, other in zip(odd.lines, plain.lines, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }
        assert all(map(math.isfinite, one.values()))


def test_figures_are_of_sampled_tokens_and_say_what_the_environment_did():
    run = job("grpo").steps(0, 1)
    (line,), (trained,) = run.lines, run.task._buffer._retained
    columns = trained.episode.columns
    several = (columns["turns"] == 2).double()
    assert line["response_length_mean"] == pytest.approx(float(columns.lengths.double().mean()))
    assert line["tokens"] == int(columns.lengths.sum())
    assert line["turns_mean"] == pytest.approx(float(columns["turns"].double().mean()))
    assert line["context_tokens_mean"] == pytest.approx(len(REPLY) * float(several.mean()))
    assert line["branches_mean"] == 0
    assert line["reward_environment_mean"] == pytest.approx(float(columns["environment_reward"].mean()))
    assert line["episodes_failed"] == line["episodes_failed_share"] == 0
    plain = Job("grpo").steps(0, 1).lines[0]
    assert not {"turns_mean", "context_tokens_mean", "episodes_failed"} & plain.keys()


def test_a_sample_of_a_step_has_its_turns_and_rewards():
    run = job("grpo").steps(0, 1)
    described = [sample for sample in run.task.samples(1) if len(sample.turns) > 1]
    assert all([turn.by for turn in each.turns] == ["policy", "environment", "policy"] for each in described)
    assert {each.rewards["environment"] for each in described} <= {0.0, 1.0}


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_resumed_run_of_episodes_is_as_one_without_a_stop(algorithm):
    """With episodes of the window in its snapshot, and branches in these."""
    resumed_is_whole(lambda: job(algorithm, "spec.replay={maxReplayEpisode: 2}", reply=forked), 2, 4)


@pytest.mark.parametrize("algorithm", ONLINE)
def test_every_algorithm_learns_from_branches(algorithm):
    """An episode has one advantage in its group, however many branches it has."""
    (line,) = (run := job(algorithm, reply=forked).steps(0, 1)).lines
    columns = run.task._buffer._retained[0].episode.columns
    several = float((columns["turns"] == 2).double().mean())
    assert line["branches_mean"] == pytest.approx(several)
    assert several > 0.5
    plain = job(algorithm).steps(0, 1)
    norms = [name for name in line if name.endswith("grad_norm")]
    assert [line[name] != plain.lines[0][name] for name in norms] == [True] * len(norms), (
        "a branch reads less"
    )
    assert len(columns) == len(plain.task._buffer._retained[0].episode.columns)


def failing(every: int, problem: str = "the environment raised KeyError") -> Callable[[Rollout], Rollout]:
    """Every so manyth episode has a problem."""
    count = 0

    def reply(rollout: Rollout) -> Rollout:
        nonlocal count
        count += 1
        made = replied(rollout)
        return replace(made, outcome=Outcome(0.0, 1, problem=problem)) if count % every == 0 else made

    return reply


def test_an_episode_that_failed_is_left_out_and_the_others_of_its_prompt_are_trained_on():
    run = job("grpo", reply=failing(4)).steps(0, 1)
    (line,) = run.lines
    assert (line["episodes_failed"], line["episodes_failed_share"]) == (8, 0.25)
    ledger = run.ledger()
    assert (ledger.trained, ledger.dropped) == (8, 0)
    (buffered,) = run.task._buffer._retained
    assert len(buffered.episode) == 24


def test_prompts_whose_episodes_all_failed_are_dropped_with_the_reason():
    count = 0

    def reply(rollout: Rollout) -> Rollout:
        nonlocal count
        count += 1
        made = replied(rollout)
        return replace(made, outcome=Outcome(0.0, 1, problem="no licence")) if count <= 8 else made

    run = job("grpo", reply=reply).steps(0, 1)
    ledger = run.task.state()["ledger"]
    assert {reason: sum(b - a for a, b in runs) for reason, runs in ledger["dropped"].items()} == {
        "no licence": 2
    }
    assert (run.ledger().trained, run.ledger().dropped, run.ledger().lost) == (6, 2, 0)


def test_too_many_failed_episodes_end_the_step_with_the_reason():
    """They are no sign of the policy, and the rest may be a choice of easy ones."""
    message = (
        r"16 of the step's 32 episodes so far have no reward \(no licence\); spec.reward.maxFailedShare 0.25"
    )
    with pytest.raises(Unscored, match=message):
        job("grpo", reply=failing(2, "no licence")).steps(0, 1)


def test_held_out_episodes_are_judged_by_their_rewards():
    """One that failed has no score; if all did, the line has the reason."""
    held_out = {"held_out": ROWS[:5]}
    given = ("grpo", "spec.evaluation={data: [a], samples: 2}")
    run = job(*given, reply=failing(5, "no licence"), held_out=held_out)
    run.task._judges = {}
    (line,) = run.task.evaluate(1)
    assert line["count"] == 8
    assert line["mean"] in {i / 8 for i in range(9)}
    assert "failed" not in line
    run = job(*given, reply=failing(1, "no licence"), held_out=held_out)
    run.task._judges = {}
    (line,) = run.task.evaluate(1)
    assert (line["failed"], line["count"]) == ("no licence", 0)
    assert math.isnan(line["mean"])


def test_a_function_judges_held_out_episodes_that_did_not_fail():
    judged = list[int]()

    def judge(sequences: Any, rows: Any) -> torch.Tensor:
        judged.append(len(rows))
        return torch.arange(len(sequences)).float()

    given = ("grpo", "spec.evaluation={data: [a], function: 'a:b'}", "spec.model.reward=org/reward")
    run = job(*given, reply=failing(3), held_out={"held_out": ROWS[:6]})
    run.task._judges = {"evaluation": judge}
    (line,) = run.task.evaluate(1)
    assert (judged, line["count"], line["mean"]) == ([4], 4, 1.5)
