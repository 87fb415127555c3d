"""The number of generators follows the trainer's wait: by the formula, and in a job whose steps obey it."""

import itertools
import math
import random

import pytest
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.world import World, running

from rlhf_api.contract.report import TrainerStatus
from rlhf_operator.cluster.decide.autoscale import required_replicas

SCALE = "spec.generator.autoscale={minReplicas: 2, maxReplicas: 12, trainerIdle: 0.2}"
AHEAD = ("spec.rollout.maxStaleness=2", "spec.sampling={maxNewTokens: 64}")


def shares(work: float, generators: int, *, ahead: bool) -> tuple[float, float]:
    """Idle shares of trainer and generators where a step is 1 s of training, and `work` s of one generator."""
    generation = work / generators
    step = max(1.0, generation) if ahead else 1.0 + generation
    return 1 - 1 / step, 1 - generation / step


def report(step: int, idle: tuple[float | None, float | None]) -> TrainerStatus:
    return TrainerStatus(
        activity="training", step=step, total_steps=999, trainer_idle=idle[0], generator_idle=idle[1]
    )


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("generators", [1, 2, 5, 9])
@pytest.mark.parametrize("work", [0.3, 1.0, 2.0, 3.9])
def test_as_few_generators_as_keep_to_the_target(work, generators, ahead):
    replicas = f"spec.generator.replicas={generators}"
    spec = job(replicas, SCALE, *(AHEAD if ahead else ())).spec
    scale = spec.generator.autoscale
    required = required_replicas(spec, scale, report(1, shares(work, generators, ahead=ahead)))
    fits = [n for n in range(2, 13) if shares(work, n, ahead=ahead)[0] <= 0.2 + 1e-9]
    assert required == (fits[0] if fits else 12)


class Steps:
    """Steps of a job whose generation takes `work` seconds of one generator."""

    def __init__(self, world: World, *, ahead: bool) -> None:
        self.world, self.ahead, self.number, self.replicas = world, ahead, 3, [2]
        self._draw = random.Random(0)

    def run(self, count: int, work: float, spread: float = 0.0) -> list[int]:
        """The number of generators after each of so many steps, each looked at twice."""
        for _ in range(count):
            self.number += 1
            took = work * math.exp(self._draw.uniform(-spread, spread))
            self.world.trainer = report(self.number, shares(took, self.replicas[-1], ahead=self.ahead))
            generators = self.world.step().generators or self.world.step().generators
            self.replicas.append(generators or self.replicas[-1])
            if generators:
                replicas = f"spec.generator.replicas={generators}"
                self.world.overrides = (*self.world.overrides[:-1], replicas)
                self.world.settle()
        return self.replicas[-count:]


@pytest.fixture(params=[False, True], ids=["waits", "ahead"])
def steps(request) -> Steps:
    ahead = AHEAD if request.param else ()
    return Steps(running(SCALE, *ahead, "spec.generator.replicas=2"), ahead=request.param)


def test_a_job_gets_the_generators_that_its_steps_need_and_gives_them_back(steps):
    more, fewer = (6.0, 4.0) if steps.ahead else (2.5, 1.0)
    assert steps.run(10, more)[-1] == (5 if steps.ahead else 10)
    assert steps.run(12, fewer)[-1] == 4
    assert steps.run(30, 60.0)[-1] == 12
    assert steps.run(30, 0.01)[-1] == 2
    messages = [message for reason, message in steps.world.events if reason == "Autoscaled"]
    assert len(messages) == len(set(messages)) == 4
    assert messages[0].startswith("generators 2 -> ")


def test_steps_that_differ_do_not_make_generators_come_and_go(steps):
    counts = steps.run(120, 4.0 if steps.ahead else 1.5, spread=0.25)
    settled = counts[20:]
    assert max(settled) - min(settled) <= 2
    assert sum(a != b for a, b in itertools.pairwise(settled)) <= 9


def test_a_number_outside_the_bounds_is_taken_back_at_once():
    world = running(SCALE, "spec.generator.replicas=2")
    world.overrides = (SCALE, "spec.generator.replicas=20")
    assert world.step().generators == 12


def test_nothing_is_decided_while_a_generator_is_missing_or_before_its_first_whole_step(steps):
    world = steps.world
    assert steps.run(3, 50.0) == [2, 2, 2], "the first was under way when the job was first looked at"
    world.end("job-generator-1")
    for number in range(7, 12):
        world.trainer = report(number, (0.9, 0.0))
        assert world.step().generators is None
    world.settle()
    for number, expected in ((12, None), (13, None), (14, None), (15, 12)):
        world.trainer = report(number, (0.95, 0.0))
        assert world.step().generators == expected


@pytest.mark.parametrize("idle", [(None, None), (1.0, 0.0), (float("nan"), 0.0)])
def test_a_report_without_such_figures_decides_nothing(idle):
    world = running(SCALE, "spec.generator.replicas=2")
    for number in range(4, 12):
        world.trainer = report(number, idle)
        assert world.step().generators is None


def test_without_it_nothing_is_scaled_or_kept():
    world = running("spec.generator.replicas=2")
    for number in range(4, 12):
        world.trainer = report(number, (0.9, 0.0))
        assert world.step().generators is None
    assert world.status.cluster.scaling is None
