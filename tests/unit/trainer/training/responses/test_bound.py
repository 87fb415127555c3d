"""The last guard of rollout.maxStaleness: tokens that are older than the bound are not trained on, whoever erred."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.trainer.replay.ppo_worker import Generators
from tests.unit.trainer.training.running import Job

from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.local_generation.shared import generate_shared
from rlhf_trainer.rollout.collector import StaleTokens
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.in_flight.saved_responses import BLOB, encode
from rlhf_trainer.rollout.rollouts import Issue
from rlhf_trainer.tensors.records import Prompt


class Late(Generators):
    """The episodes that were asked ahead are of weights that are `behind` by so many."""

    behind = 0

    def publish(self, issue: Issue, *, collected: bool) -> None:  # noqa: ARG002
        self.weights.version, self._issue = self.version, issue

    def episode(self) -> Responses:
        return sampled(self, self._issue(), max(0, self.version - self.behind))

    def blobs(self) -> dict[str, Callable[[], bytes]]:
        return {BLOB: lambda: encode([])}


def sampled(generators: Generators, prompts: list[Prompt], version: int) -> Responses:
    ctx, arguments = (
        generators._ctx,
        (SamplingRequest(generators._ctx.spec.sampling), version, generators._ctx.stop),
    )
    return Responses(generate_shared(generators._engine, ctx.ranks, ctx.tokenizer, prompts, *arguments))


def late(behind: int, most: int = 2) -> Job:
    ahead = ("spec.generator.sharedWithTrainer=false", f"spec.rollout.maxStaleness={most}")
    job = Job("grpo", "klCoefficient: 0", *ahead, rollouts=lambda ctx, models: Late(ctx, models["policy"]))
    job.rollouts.behind = behind
    return job


def test_tokens_within_the_bound_are_trained_on():
    job = late(behind=2).steps(0, 4)
    assert [line["staleness_max"] for line in job.lines] == [0, 1, 2, 2]


def test_older_ones_are_not():
    job = late(behind=3).steps(0, 3)
    message = (
        r"weight version 0 came to version 3, which is more than rollout.maxStaleness \(2\) versions later"
    )
    with pytest.raises(StaleTokens, match=message):
        job.steps(3, 4)


class Mixed(Late):
    """Every other response was begun, and ended, under the weights before."""

    def episode(self) -> Responses:
        earlier = max(0, self.version - 1)
        rollouts = super().episode().rollouts
        return Responses(
            [
                replace(r, versions=array("i", [earlier] * len(r.tokens))) if i % 2 else r
                for i, r in enumerate(rollouts)
            ]
        )


@pytest.mark.parametrize("in_flight", ["recompute", "keep"])
def test_tokens_of_the_present_weights_are_compared_unless_keys_of_earlier_ones_were_kept(
    in_flight,
):
    ahead = (
        "spec.generator.sharedWithTrainer=false",
        f"spec.rollout={{maxStaleness: 1, inFlight: {in_flight}}}",
    )
    two_updates = "klCoefficient: 0, minibatchSize: 16"
    job = Job("grpo", two_updates, *ahead, rollouts=lambda ctx, models: Mixed(ctx, models["policy"]))
    first, second = job.steps(0, 2).lines
    assert first["logprob_difference"] < 1e-4
    assert ("logprob_difference" in second) == (in_flight == "recompute")


@pytest.mark.parametrize("behind", [0, 1])
def test_tokens_of_weights_before_those_that_are_served_have_the_log_probabilities_of_their_sampler(behind):
    """With weights.everySteps 2: the generators that sampled them have died, and the others have newer weights."""
    seldom = ("spec.generator.sharedWithTrainer=false", "spec.weights.everySteps=2")
    job = Job(
        "grpo", "klCoefficient: 0", *seldom, rollouts=lambda ctx, models: Generators(ctx, models["policy"])
    )
    generators: Any = job.rollouts

    def answer(batch: list[Prompt], *_: object, **__: object) -> Responses:
        rollouts = sampled(generators, batch, 1 - behind).rollouts
        return Responses([replace(r, logprobs=array("f", [-9.0] * len(r.tokens))) for r in rollouts])

    generators.answer = answer
    generators.version = generators.weights.version = 1
    job.task.collect(1)
    columns = job.task._pending.columns
    assert ("logprobs" in columns) is bool(behind), "else those of the policy as it is"
    if behind:
        assert columns["logprobs"].tolist() == columns["sampled_logprobs"].tolist()


@pytest.mark.parametrize("most", [1, 2])
def test_responses_of_a_snapshot_that_a_lower_bound_forbids_are_asked_for_again(most: int):
    before = late(behind=2).steps(0, 3)
    before.task.publish(3)
    before.task.collect(3)
    prompt_ids = before.task._pending.prompt_ids
    after = late(behind=1, most=most).restore(before.snapshot(3))
    after.steps(3, 4)
    assert after.lines[0]["staleness_max"] == most
    assert (after.ledger().lost, after.ledger().dropped) == (0, 0)
    assert after.positions("trained") == after.positions("issued") == after.positions("returned")
    assert after.positions("trained") == before.positions("issued"), "the very prompts"
    assert set(prompt_ids) == set(after.task._buffer._retained[-1].episode.prompt_ids)
