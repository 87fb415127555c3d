"""A step asks for more prompts than it trains on: which are stopped, and that each is trained on once."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.kubernetes.kube import eventually
from tests.unit.trainer.replay.test_prompt_source import answered, source
from tests.unit.trainer.rollout.test_episodes import ALONE
from tests.unit.trainer.rollout.test_fleet import PROMPTS, World
from tests.unit.trainer.scoring.servers import Generator

from rlhf_api.dataset.rows import PromptRow
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.rollout.oversampling import Oversampling
from rlhf_trainer.rollout.prompt_source import PromptSource
from rlhf_trainer.rollout.responses import Collected, collected
from rlhf_trainer.transport.http import HttpClient

PER_STEP = 4
HALF = "spec.rollout.oversampling=0.5"


@pytest.fixture
def http() -> Iterator[HttpClient]:
    with HttpClient("token") as http:
        yield http


def test_a_step_asks_for_more_until_those_that_were_stopped_make_a_step():
    over = Oversampling(0.5, PER_STEP)
    assert over.choose([], 4, 40) == ([], 6)
    over.stop([2, 5])
    assert over.choose([2, 5], 4, 40) == ([], 6), "they wait"
    over.stop([7, 9])
    assert over.choose([2, 5, 7, 9, 11], 4, 40) == ([2, 5, 7, 9], 0), "and no other is stopped"
    assert over.choose([2, 5, 7, 9, 11], 2, 40) == ([11], 2), (
        "what replaces filtered groups is not all of a step"
    )
    assert over.take_metrics() == {"stopped_share": 4 / 19}


def test_no_more_are_stopped_than_the_steps_that_are_left_train_on():
    over = Oversampling(0.5, PER_STEP)
    over.stop([2, 5, 7])
    assert over.choose([2, 5, 7], 4, 4) == ([], 5)
    over.stop([8])
    assert over.choose([2, 5, 7], 4, 0) == ([2, 5, 7], 1)


def test_without_oversampling_prompts_that_were_stopped_before_come_first():
    """As after a change of the setting."""
    over = Oversampling(0.0, PER_STEP)
    over.restore({"stopped": [5]})
    assert over.choose([2, 5], 4, 40) == ([5, 2], 2)
    assert over.take_metrics() == {}


@given(st.data())
def test_a_run_trains_on_the_same_prompts_each_once_whoever_is_stopped(data):
    """Also where a snapshot is taken between steps, and the run goes on from it."""
    steps = data.draw(st.integers(1, 12))
    share = data.draw(st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]))
    override = f"spec.rollout.oversampling={share}"
    (run, reports), stops = source(20, override), Counter[int]()
    for number in range(1, steps + 1):
        prompts = run.issue(PER_STEP, (steps - number) * PER_STEP)
        first = data.draw(st.permutations(prompts))[:PER_STEP]
        stopped = [run.places[prompt.id] for prompt in prompts if prompt not in first]
        stops.update(stopped)
        places = run.places
        made = answered(first)
        made.columns.rows["position"][:] = made.columns["position"].new_tensor([places[p.id] for p in first])
        run.trained(run.take(Collected(made, [], {}, (), stopped)))
        if data.draw(st.booleans()):
            state = run.state(None)
            run, reports = source(20, override)
            run.restore(state, None)
    assert run.state(None)["ledger"]["trained"] == [[0, steps * PER_STEP]]
    assert run.state(None)["held"] == []
    assert max(stops.values(), default=0) <= 1
    assert reports[-1].lost == 0


def test_the_longest_is_stopped_and_named(http):
    world, server = World(http), Generator(http, "a")
    server.stuck = {5}
    world.announce(server)
    world.publish(0)
    responses = world.rollouts.answer(PROMPTS, SamplingRequest(world.ctx.spec.sampling), enough=7)
    assert [r.prompt.id for r in responses.rollouts] == [f"0/{i}" for i in range(8) if i != 5]
    assert (responses.stopped, responses.unanswered) == (["0/5"], [])
    eventually(lambda: server.given_up == [5], "nobody waits for it")
    assert world.control.status.queue == 0
    (batch, rest) = world.rollouts.stream(PROMPTS, 3, enough=7)
    assert (len(batch.rollouts), len(rest.rollouts), rest.stopped) == (3, 4, ["0/5"])


def test_a_refused_prompt_is_not_stopped_and_nobody_waits_for_what_cannot_come(http):
    world = World(http)
    world.announce(Generator(http, "picky", fails=5, status=400))
    world.publish(0)
    responses = world.rollouts.answer(PROMPTS, SamplingRequest(world.ctx.spec.sampling), enough=6)
    assert (len(responses.rollouts), len(responses.refused), responses.stopped) == (5, 3, [])


def step(run: PromptSource, world: World, number: int, later: int) -> list[int]:
    """Positions that the step trains on."""
    prompts = run.issue(PER_STEP, later)
    responses = world.rollouts.answer(prompts, SamplingRequest(world.ctx.spec.sampling), enough=PER_STEP)
    episode = run.take(collected(ALONE, number, responses, run.places))
    run.trained(episode)
    return sorted(set(episode.columns["position"].tolist()))


def test_a_response_that_was_stopped_begins_anew_with_its_seed_in_a_step_that_a_resumed_run_makes(http):
    rows: Any = [PromptRow(prompt=chr(97 + i)) for i in range(20)]
    world, servers = World(http), [Generator(http, name) for name in "abc"]
    world.announce(*servers)
    world.publish(0)
    before, _ = source(rows, HALF)
    first = before.issue(20)
    stuck = {first[i].tokens[0] for i in (0, 3, 7, 8)}
    before, _ = source(rows, HALF)
    for server in servers:
        server.stuck = {*stuck}
    assert step(before, world, 1, 16) == [1, 2, 4, 5]
    assert step(before, world, 2, 12) == [6, 9, 10, 11]
    state = before.state(None)
    assert (state["held"], state["stopped"]) == ([0, 3, 7, 8], [0, 3, 7, 8])
    after, reports = source(rows, HALF)
    after.restore(state, None)
    world.rollouts.version = 1
    for server in servers:
        server.stuck.clear()
    assert step(after, world, 3, 8) == [0, 3, 7, 8]
    assert step(after, world, 4, 4)
    bodies = [body for server in servers for body in server.asked]
    seeds = Counter(body["seed"] for body in bodies if body["prompt"][0] in stuck)
    assert [*seeds.values()] == [2] * 4, "the same seed"
    assert {len(body["prompt"]) for body in bodies} == {len(first[0].tokens)}, (
        "and no token of the first request"
    )
    assert reports[-1].lost == 0
