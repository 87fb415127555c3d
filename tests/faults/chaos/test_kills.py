"""A trainer that is killed at any moment: it goes on from its last cut as if nothing had happened."""

import random
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from tests.faults.chaos.conftest import Stores
from tests.support.forked.roles import Job

from rlhf_api.contract.run import EXIT_INVALID

pytestmark = pytest.mark.slow
KILLS = 8
POINTS = ("segment", "manifest", "latest", "committed")


def schedule(seed: int, kills: int) -> list[str]:
    """Half of them between two writes of a cut, at each point in turn, half of them anywhere: `faults.kill_as_told`."""
    draw = random.Random(seed)
    named = [f"{draw.randint(1, 3)}:{POINTS[i % len(POINTS)]}" for i in range(kills // 2)]
    anywhere = [f"{draw.uniform(0, 1.5):.3f}:" for _ in range(kills - len(named))]
    return draw.sample([*named, *anywhere], kills)


def killed(when: str) -> dict[str, str]:
    return {"RLHF_FAULTS": "tests.support.faults:kill_as_told", "KILL_AT": when}


def test_kills_cost_nothing_but_time(job: Job, stores: Stores):
    steps = 24  # 8 epochs
    undisturbed, stricken = (stores.named(name, steps=steps) for name in ("undisturbed", "stricken"))
    assert job.train("undisturbed", overrides=undisturbed.overrides) == [0]
    train = partial(job.train, "stricken", overrides=stricken.overrides)
    for i, when in enumerate(schedule(4, KILLS)):
        assert train(resume=i > 0, environ=killed(when)) == [-9]
    assert train(resume=True) == [0]
    stricken.assert_same(undisturbed)
    stricken.assert_every_prompt_was_trained_once()


APART = {"dtype": "bfloat16", "deepspeed": {"zero_optimization": {"stage": 3}}, "criticDtype": "float32"}


@pytest.mark.parametrize(("stage", "when"), [(1, "3:segment"), (2, "2:latest")])
def test_two_ranks_are_killed_and_go_on(job: Job, stores: Stores, stage: int, when: str):
    """Actor of ZeRO-3 in bfloat16, critic of another stage in float32; both are saved as what they are."""
    more = {"steps": 4, "trainer": {**APART, "criticDeepspeed": {"zero_optimization": {"stage": stage}}}}
    name = f"apart-{stage}"
    undisturbed, stricken = stores.named(f"whole-{name}", **more), stores.named(name, **more)
    assert job.train(f"whole-{name}", overrides=undisturbed.overrides, ranks=2) == [0, 0]
    assert -9 in job.train(name, overrides=stricken.overrides, ranks=2, environ=killed(when))
    assert job.train(name, overrides=stricken.overrides, ranks=2, resume=True) == [0, 0]
    stricken.assert_same(undisturbed)
    for model, dtype in (("policy", torch.bfloat16), ("critic", torch.float32)):
        exported = load_file(job.folder / name / model / "model.safetensors")
        assert {tensor.dtype for tensor in exported.values()} == {dtype}
        masters = {n: t for n, t in stricken.tensors().items() if n.startswith(f"{model}/parameters/")}
        rounded = {n.rpartition("/")[2]: t.to(dtype) for n, t in masters.items()}
        assert rounded.keys() == exported.keys()
        assert [n for n, tensor in exported.items() if not torch.equal(tensor, rounded[n])] == []


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(job: Job, stores: Stores):
    """The damage is detected during loading, when half of the models have the damaged checkpoint's weights."""
    whole, damaged = stores.named("sound", steps=4), stores.named("damaged", steps=3)
    assert job.train("sound", overrides=whole.overrides) == [0]
    assert job.train("damaged", overrides=damaged.overrides) == [0]
    damaged.damage("critic")
    longer = stores.named("damaged", steps=4)
    assert job.train("damaged", overrides=longer.overrides, resume=True) == [0]
    log = job.log("damaged")
    assert "DAMAGED CHECKPOINT of step 3, falling back to the one before: segment " in log
    assert "resumed from the checkpoint of step 2 in " in log
    longer.assert_same(whole)
    for step in longer.steps():
        longer.damage("policy", step)
    assert job.train("damaged", overrides=longer.overrides, resume=True) == [EXIT_INVALID]
    assert f"every checkpoint in {longer.url} is damaged (of steps 3, 4)" in job.log("damaged")


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
