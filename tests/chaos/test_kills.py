"""A trainer that is killed at any moment: it goes on from its last cut as if nothing had happened."""

import random

import pytest
from tests.chaos.conftest import Stores
from tests.support.roles import Job

pytestmark = pytest.mark.slow
KILLS = 30
POINTS = ("segment", "manifest", "latest", "committed")


def schedule(kills: int) -> list[str]:
    """Half of them between two writes of a cut, half of them anywhere; see `faults.kill_as_told`."""
    draw = random.Random(4)
    named = [f"{draw.randint(1, 3)}:{draw.choice(POINTS)}" for _ in range(kills // 2)]
    anywhere = [f"{draw.uniform(0, 1.5):.3f}:" for _ in range(kills - len(named))]
    return draw.sample([*named, *anywhere], kills)


def killed(when: str) -> dict[str, str]:
    return {"RLHF_FAULTS": "tests.support.faults:kill_as_told", "KILL_AT": when}


def test_thirty_kills_cost_nothing_but_time(job: Job, stores: Stores):
    steps = 40
    undisturbed, stricken = stores.named("undisturbed", steps=steps), stores.named("stricken", steps=steps)
    assert job.train("undisturbed", overrides=undisturbed.overrides) == [0]
    survived = []
    for when in schedule(KILLS):
        codes = job.train(
            "stricken", overrides=stricken.overrides, resume=bool(survived), environ=killed(when)
        )
        survived.append((when, codes, stricken.steps()))
    assert [codes for _, codes, _ in survived] == [[-9]] * KILLS, survived
    assert job.train("stricken", overrides=stricken.overrides, resume=True) == [0]
    stricken.assert_same(undisturbed)


@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_are_killed_and_go_on(job: Job, stores: Stores, stage: int):
    more = {"steps": 6, "trainer": {"deepspeed": {"zero_optimization": {"stage": stage}}}}
    undisturbed, stricken = stores.named(f"whole-{stage}", **more), stores.named(f"struck-{stage}", **more)
    assert job.train(f"whole-{stage}", overrides=undisturbed.overrides, ranks=2) == [0, 0]
    name = f"struck-{stage}"
    for i, when in enumerate(("2:latest", "3:segment")):
        codes = job.train(name, overrides=stricken.overrides, ranks=2, resume=i > 0, environ=killed(when))
        assert -9 in codes
    assert job.train(name, overrides=stricken.overrides, ranks=2, resume=True) == [0, 0]
    stricken.assert_same(undisturbed)


def test_a_run_of_two_ranks_goes_on_with_one_and_with_three(job: Job, stores: Stores):
    """The same state, bit for bit, whoever reads it; from then on it is trained by other ranks."""
    zero = {"trainer": {"deepspeed": {"zero_optimization": {"stage": 2}}}}
    store = stores.named("resized", steps=3, **zero)
    assert job.train("resized", overrides=store.overrides, ranks=2) == [0, 0]
    before = store.tensors()
    for steps, ranks in ((5, 1), (7, 3)):
        longer = stores.named("resized", steps=steps, **zero)
        assert job.train("resized", overrides=longer.overrides, ranks=ranks, resume=True) == [0] * ranks
        assert longer.steps()[-1] == steps
    assert before.keys() <= store.tensors().keys()
    reshaped = {name: t.shape for name, t in store.tensors().items() if not name.startswith("generators")}
    assert reshaped == {name: t.shape for name, t in before.items() if not name.startswith("generators")}
