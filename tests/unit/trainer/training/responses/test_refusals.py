"""Generators that refuse every prompt end the job: it is wrong, not a prompt."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.unit.trainer.replay.ppo_worker import Generators
from tests.unit.trainer.training.responses.test_dynamic import DYNAMIC
from tests.unit.trainer.training.running import Job

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.dispatch.roster import Unavailable
from rlhf_trainer.environments.environments import UNOPENED
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.rollouts import Issue
from rlhf_trainer.tensors.records import Prompt

NOT_SHARED = "spec.generator.sharedWithTrainer=false"
SETTINGS = "klCoefficient: 0, minibatchSize: 8"


REASON = ["HTTP 400: too long"]


def refused(prompts: Sequence[Prompt]) -> Responses:
    return Responses(refused={prompt.id: REASON[i % len(REASON)] for i, prompt in enumerate(prompts)})


class Refusing(Generators):
    def answer(self, prompts: list[Any], *_: Any, **__: Any) -> Responses:
        return refused(prompts)

    def stream(self, prompts: list[Prompt], _size: int | None, **_more: Any) -> Iterator[Responses]:
        yield refused(prompts)


class Ahead(Refusing):
    def publish(self, issue: Issue, *, collected: bool) -> None:  # noqa: ARG002
        self._prompts = issue()

    def episode(self) -> Responses:
        return refused(self._prompts)


def made(*overrides: str, settings: str = SETTINGS, kind: type[Refusing] = Refusing) -> Job:
    return Job("grpo", settings, *overrides, rollouts=lambda ctx, models: kind(ctx, models["policy"]))


def ahead() -> Job:
    return made(NOT_SHARED, "spec.rollout.maxStaleness=1", kind=Ahead)


every = pytest.mark.parametrize(
    "run",
    [
        lambda: made(NOT_SHARED).steps(0, 1),
        lambda: made(NOT_SHARED, settings=f"{SETTINGS}, dynamicSampling: 2").steps(0, 1),
        lambda: made(*DYNAMIC).steps(0, 1),
        lambda: ahead().steps(0, 1),
    ],
    ids=["fixed", "dynamic sampling", "dynamic", "ahead"],
)


@every
def test_the_job_fails_as_it_would_be_refused_again(run: Callable[[], object]):
    with pytest.raises(
        InvalidJob, match=r"spec\.generator: the generators refuse every prompt: HTTP 400: too long"
    ):
        run()


@every
def test_generators_that_are_silent_refuse_nothing_and_the_trainer_is_started_again(
    run: Callable[[], object], monkeypatch
):
    """The reason of `dispatch` for a prompt that failed three times, and one refusal beside it."""
    monkeypatch.setitem(globals(), "REASON", ["no progress for 8 s, 3 times", "HTTP 400: too long"])
    with pytest.raises(
        Unavailable, match=r"^the generators respond to no prompt: no progress for 8 s, 3 times$"
    ):
        run()


@every
def test_an_environment_that_opens_no_episode_ends_the_job_with_its_reason(
    run: Callable[[], object], monkeypatch: pytest.MonkeyPatch
):
    reason = f"{UNOPENED}: reset raised KeyError: 'grade'"
    monkeypatch.setitem(globals(), "REASON", [reason])
    with pytest.raises(InvalidJob, match=f"^spec.environment: {reason}$"):
        run()
