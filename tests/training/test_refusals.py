"""Generators that refuse every prompt end the run, whatever it asks them for: the job is wrong, not a prompt."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.training.running import Job
from tests.training.test_bound import Late
from tests.training.test_dynamic import DYNAMIC
from tests.training.test_stops import Fleet

from rlhf_api.rows import PromptRow
from rlhf_trainer.comms.roster import Unavailable
from rlhf_trainer.generation.requests import Responses
from rlhf_trainer.records import Prompt

NOT_SHARED = "spec.generator.sharedWithTrainer=false"
SETTINGS = "klCoefficient: 0, minibatchSize: 8"


def refused(prompts: Sequence[Prompt]) -> Responses:
    return Responses(refused={prompt.id: "HTTP 400: too long" for prompt in prompts})


class Refusing(Fleet):
    def answer(self, prompts: list[Any], *_: Any, **__: Any) -> Responses:
        return refused(prompts)

    def stream(self, prompts: list[Prompt], _size: int | None) -> Iterator[Responses]:
        yield refused(prompts)


class Ahead(Late):
    def __init__(self) -> None:
        pass

    def publish(self, version: int, issue: Callable[[], list[Prompt]], *, collected: bool) -> None:  # noqa: ARG002
        self._prompts = issue()

    def episode(self) -> Responses:
        return refused(self._prompts)


def made(*overrides: str, settings: str = SETTINGS, **more: Any) -> Job:
    return Job("grpo", settings, *overrides, fleet=lambda *_: Refusing(), **more)


def ahead() -> Job:
    job = made(NOT_SHARED, "spec.rollout.maxStaleness=1")
    job.task._collector.ahead = Ahead()
    return job


def evaluated() -> None:
    sets = "spec.evaluation={function: 'a:b', data: [a]}"
    job = made(NOT_SHARED, sets, held_out={"held_out": [PromptRow(prompt="held out")]})
    job.task.publish(0)
    job.task.evaluate(0)


@pytest.mark.parametrize(
    "run",
    [
        lambda: made(NOT_SHARED).steps(0, 1),
        lambda: made(NOT_SHARED, settings=f"{SETTINGS}, dynamicSampling: 2").steps(0, 1),
        lambda: made(*DYNAMIC).steps(0, 1),
        lambda: ahead().steps(0, 1),
        evaluated,
    ],
    ids=["fixed", "dynamic sampling", "dynamic", "ahead", "evaluation"],
)
def test_it_ends(run: Callable[[], object]):
    with pytest.raises(Unavailable, match="the generators refuse every prompt: HTTP 400: too long"):
        run()
