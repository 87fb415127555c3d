"""A store that goes away, and two trainers with one: what was committed stays, and everybody is told."""

import threading
import time
from functools import partial

import pytest
from tests.faults.chaos.conftest import Store, Stores
from tests.support.faults import ASKED
from tests.support.forked.roles import Job
from tests.support.servers.outage import Mode, Proxy, proxy

from rlhf_api.contract.run import EXIT_INVALID

pytestmark = pytest.mark.slow
PATIENCE_S = 3
STEPS = 14


def in_background(train, codes: list[int]) -> threading.Thread:
    thread = threading.Thread(target=lambda: codes.extend(train()))
    thread.start()
    return thread


def wait_for_cuts(store: Store, step: int) -> None:
    deadline = time.monotonic() + 300
    while not (steps := store.steps()) or steps[-1] < step:
        assert time.monotonic() < deadline, steps
        time.sleep(0.05)


def held(way: Proxy) -> dict[str, str]:
    """The environment of a trainer whose store is behind `way`, and that waits in front of its fourth step."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{way.port}",
        "RLHF_FAULTS": "tests.support.faults:hold_fourth_step",
    }


@pytest.fixture(scope="module")
def undisturbed(job: Job, stores: Stores) -> Store:
    store = stores.named("calm", steps=STEPS)
    assert job.train("calm", overrides=store.overrides) == [0]
    return store


@pytest.mark.parametrize("mode", ["refused", "slow"])
def test_a_short_outage_costs_nothing_but_time(job: Job, stores: Stores, undisturbed: Store, mode: Mode):
    name = f"short-{mode}"
    store = stores.named(name, steps=STEPS, timeout=60)
    with proxy(stores.port) as way:
        codes: list[int] = []
        train = partial(job.train, name, overrides=store.overrides, environ=held(way))
        thread = in_background(train, codes)
        wait_for_cuts(store, 3)
        way.set(mode)
        (job.folder / name / ASKED).touch()
        assert way.met.wait(300)
        time.sleep(2)
        way.set("open")
        thread.join(600)
    assert codes == [0], job.log(name)[-3000:]
    store.assert_same(undisturbed)


@pytest.mark.parametrize("mode", ["refused", "silent"])
def test_a_long_outage_ends_in_a_reason_and_loses_nothing(
    job: Job, stores: Stores, undisturbed: Store, mode: Mode
):
    name = f"long-{mode}"
    store = stores.named(name, steps=STEPS, timeout=PATIENCE_S)
    with proxy(stores.port) as way:
        codes: list[int] = []
        train = partial(job.train, name, overrides=store.overrides, environ=held(way))
        thread = in_background(train, codes)
        wait_for_cuts(store, 3)
        way.set(mode)
        (job.folder / name / ASKED).touch()
        thread.join(600)
    assert codes == [1]
    assert f"the store {store.url} fails: " in job.end(name)
    steps = store.steps()
    assert steps
    again = stores.named(name, steps=STEPS)
    assert job.train(name, overrides=again.overrides, resume=True) == [0]
    assert f"resumed from the checkpoint of step {steps[-1]} " in job.log(name)
    store.assert_same(undisturbed)


def test_of_two_trainers_with_one_store_the_earlier_one_is_told(job: Job, stores: Stores, undisturbed: Store):
    store, endless = stores.named("shared", steps=STEPS), stores.named("shared", steps=100_000)
    codes: list[int] = []
    zombie = in_background(lambda: job.train("zombie", overrides=endless.overrides), codes)
    wait_for_cuts(store, 2)
    assert job.train("newer", overrides=store.overrides, resume=True) == [0]
    zombie.join(600)
    assert codes == [EXIT_INVALID]
    assert f"spec.checkpoint.store: another trainer has taken over {store.url}" in job.end("zombie")
    store.assert_same(undisturbed)
