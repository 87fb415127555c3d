"""Prompts among generators that come, drain and fail, with a weight broadcast that always works."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.clocks import deadlines
from tests.support.forked.forks import run_ranks
from tests.support.kubernetes.kube import eventually
from tests.unit.trainer.scoring.servers import Generator
from torch import distributed

from rlhf_api.contract.run import Membership, RunConfig
from rlhf_api.roles import Role
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.dispatch.control import Control
from rlhf_trainer.dispatch.roster import Roster, Stopped, Unavailable
from rlhf_trainer.process.gpu_turns import GpuTurns
from rlhf_trainer.ranks.context import Services, TrainerContext
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.rollout.clients.vllm_client import VllmClient, request_seed
from rlhf_trainer.rollout.from_generators import GeneratorRollouts
from rlhf_trainer.rollout.in_flight.fleet import Fleet
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.partial_rollout import Ended, nobody
from rlhf_trainer.tensors.records import Given, Prompt
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import BroadcastReport
from rlhf_trainer.weights.publisher import REFUSALS, Publisher

PROMPTS = [Prompt(f"0/{i}", (i,), {}) for i in range(8)]
ALONE = Ranks(0, 1, torch.device("cpu"))
CONFIG = {
    "job": "job",
    "workdir": "/",
    "spec": {
        "algorithm": "ppo",
        "steps": 100,
        "model": {"policy": "some/policy"},
        "data": {"train": ["x.jsonl"]},
        "generator": {"startupTimeoutSeconds": 120, "concurrentRequests": 2, "timeoutSeconds": 600},
        "reward": {"functions": [{"function": "a:b"}]},
    },
}


class Policy:
    """In place of the model: names of what the ranks gather."""

    adapter: Any = None
    frozen: str | None = None

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "of all", torch.zeros(1)

    def version_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "of the version", torch.zeros(1)

    def base_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "of the base", torch.zeros(1)


class Sent:
    """In place of the broadcast: whom the weights went to, each time."""

    def __init__(self) -> None:
        self.members: list[list[str]] = []
        self.versions: list[int] = []
        self.came: list[list[str]] = []
        self.looked: list[list[str]] = []
        self.servers: dict[str, Generator] = {}
        self.failures, self.silent = 0, False
        """So many times nobody takes them: silent, or with a reason."""
        self.left_out: set[str] = set()
        """Names of those that do not take them."""

    def send(self, members, tensors, version, committing, base) -> BroadcastReport:
        self.came.append([name for part in (base and base.tensors, tensors) if part for name, _ in part()])
        if self.failures:
            self.failures -= 1
            silent = frozenset(members if self.silent else ())
            lost = dict.fromkeys(members, "why")
            return BroadcastReport(version, len(self.members), "", (), lost, 0, 0.0, 1, silent=silent)
        committing()
        self.members.append([member.name for member in members])
        self.versions.append(version)
        holders = tuple(member for member in members if member.name not in self.left_out)
        for member in holders:
            self.servers[member.name].version = version
        lost = dict.fromkeys(set(members) - set(holders), "why")
        took = {"wire_seconds": 0.0, "pause_seconds": 0.5 * version, "base_bytes": 100 if base else 0}
        return BroadcastReport(version, len(self.members), "", holders, lost, 7, 0.0, 1, **took)

    def changed(self, holders) -> str:
        self.looked.append([member.name for member in holders])
        return "b (worker 0): x is no longer what was loaded as weight version 0" if len(holders) > 1 else ""


class World:
    """Rollouts of generators, with their host: `announce` says who is there."""

    def __init__(
        self,
        http: HttpClient,
        ranks: Ranks = ALONE,
        *,
        staleness: int = 0,
        in_flight: str = "recompute",
        max_new_tokens: int = 256,
        startup_seconds: int = 120,
        replicas: int = 1,
        ended: Ended = nobody,
    ) -> None:
        more = {
            "rollout": {"maxStaleness": staleness, "inFlight": in_flight},
            "sampling": {"maxNewTokens": max_new_tokens},
            "generator": {
                **CONFIG["spec"]["generator"],
                "startupTimeoutSeconds": startup_seconds,
                "replicas": replicas,
            },
        }
        config = RunConfig.model_validate_json(json.dumps({**CONFIG, "spec": {**CONFIG["spec"], **more}}))
        self.control, self.sent = Control(1), Sent()
        services = (
            Services(self.control, http, Roster(self.control, http), "127.0.0.1", "") if ranks.first else None
        )
        stop = self.control.stop_requested
        self.ctx = run = TrainerContext("job", config.spec, Path(), ranks, None, services, stop, {})
        client = VllmClient(http, sampling=config.spec.sampling, seed=0, ends=[9])
        self.policy: Any = Policy()
        sent, engine_client = (self.sent, client) if ranks.first else (None, None)
        self.weights = Publisher(run, self.policy, sent)
        self.fleet = Fleet(run, engine_client, self.weights)
        self.rollouts = GeneratorRollouts(run, self.fleet, self.weights, ended)

    def publish(self, version: int) -> None:
        self.rollouts.version = version
        self.rollouts.publish(list, collected=True)

    def answer(self, prompts: list[Prompt]) -> Responses:
        return self.rollouts.answer(prompts, SamplingRequest(self.ctx.spec.sampling))

    def announce(
        self, *generators: Generator, draining: tuple[Generator, ...] = (), unplaced: int = 0
    ) -> None:
        self.sent.servers |= {g.member.name: g for g in (*generators, *draining)}
        leaving = [g.member.model_copy(update={"draining": True}) for g in draining]
        self.control._membership = Membership(
            members=(*(g.member for g in generators), *leaving), unplaced=(Role.GENERATOR,) * unplaced
        )


@pytest.fixture
def http() -> Iterator[HttpClient]:
    with HttpClient("token") as http:
        yield http


@pytest.fixture
def world(http) -> World:
    return World(http)


def test_a_generator_without_a_node_is_not_waited_for(http):
    """As after `kubectl scale` beyond the room of the cluster, where it would hold up each start of the trainer."""
    world = World(http, replicas=3)
    world.announce(Generator(http, "a"), Generator(http, "b"), unplaced=1)
    world.control.stop_requested.set()  # which ends any wait
    world.publish(0)
    assert world.sent.members == [["a", "b"]]
    world = World(http, replicas=3)
    world.announce(Generator(http, "a"), unplaced=1)
    world.control.stop_requested.set()
    with pytest.raises(Stopped):
        world.publish(0)


def test_the_queue_is_told_and_ends_empty(world, http):
    world.announce(Generator(http, "a"))
    world.publish(0)
    assert world.control.status.queue is None
    assert [r.prompt for r in world.answer(PROMPTS).rollouts] == PROMPTS
    assert world.control.status.queue == 0


def test_longer_prompts_are_asked_first_and_nothing_else_changes(world, http):
    """Two at once, more than which no generator gets."""
    server = Generator(http, "a")
    server.open.clear()
    world.announce(server)
    world.publish(0)
    prompts = [Prompt(f"0/{i}", (i,) * (i + 1), {}) for i in range(8)]
    stream = http.start(asyncio.to_thread(world.answer, prompts))
    eventually(lambda: server.now == 2, "two are asked")
    assert {body["prompt"][0] for body in server.asked} == {6, 7}
    server.open.set()
    assert [rollout.prompt for rollout in stream.result(60).rollouts] == prompts, "in their order"
    assert {body["prompt"][0]: body["seed"] for body in server.asked} == {
        prompt.tokens[0]: request_seed(0, prompt.id) for prompt in prompts
    }


def test_prompts_with_a_given_response_are_asked_of_nobody_and_keep_their_place(world, http):
    server = Generator(http, "a")
    world.announce(server)
    world.publish(3)
    given = Given((5, 6), (True, True), finished=True)
    prompts = [Prompt(f"0/{i}", (i,), {}, given=given if i % 3 == 0 else None) for i in range(8)]
    rollouts = world.answer(prompts).rollouts
    assert [rollout.prompt for rollout in rollouts] == prompts
    assert sorted(body["prompt"][0] for body in server.asked) == [1, 2, 4, 5, 7]
    assert all((r.tokens.tolist() == [5, 6]) == (r.prompt.given is given) for r in rollouts)
    assert {tuple(r.versions) for r in rollouts if r.prompt.given} == {(3, 3)}
    only = world.answer(prompts[:1]).rollouts
    assert [rollout.tokens.tolist() for rollout in only] == [[5, 6]], "a round of nothing else ends"


def test_a_lone_generator_that_hangs_is_waited_for_and_one_that_refuses_is_not(world, http):
    alone = Generator(http, "alone")
    world.announce(alone)
    world.sent.failures, world.sent.silent = 2 * REFUSALS, True
    world.publish(0)  # its host has replaced it by now
    assert [member.name for member in world.weights.holders] == ["alone"]
    world.sent.failures, world.sent.silent = REFUSALS, False
    with pytest.raises(Unavailable, match="no generator took weight version 1: alone: why"):
        world.publish(1)


def test_a_generator_that_goes_on_hanging_is_waited_for_as_long_as_for_a_start(http):
    world, alone = World(http, startup_seconds=1), Generator(http, "alone")
    world.announce(alone)
    world.sent.failures, world.sent.silent = 10**9, True
    with pytest.raises(Unavailable, match="no generator took weight version 0: alone: why"):
        world.publish(0)


def test_a_request_to_stop_ends_the_wait_for_a_generator_that_hangs(world, http, monkeypatch):
    world.announce(Generator(http, "alone"))
    world.sent.failures, world.sent.silent = 10**9, True
    send = world.sent.send

    def stopped_meanwhile(*given):
        world.control.stop_requested.set()
        return send(*given)

    monkeypatch.setattr(world.sent, "send", stopped_meanwhile)
    with pytest.raises(Stopped, match="while waiting for the generators"):
        world.publish(0)
    assert len(world.sent.came) == 1


def test_who_drains_is_asked_nothing_more_and_who_comes_gets_weights_first(world, http):
    first, second = Generator(http, "first"), Generator(http, "second")
    world.announce(first)
    world.publish(0)
    world.announce(second, draining=(first,))
    assert len(world.answer(PROMPTS).rollouts) == len(PROMPTS)
    assert world.sent.members == [["first"], ["second"]]
    assert (len(first.asked), len(second.asked)) == (0, len(PROMPTS))


def test_generators_keep_their_weights_until_a_publish_or_until_one_joins(world, http):
    first, second = Generator(http, "first"), Generator(http, "second")
    world.announce(first)
    world.publish(2)
    world.rollouts.version = 3
    assert {r.versions[0] for r in world.answer(PROMPTS).rollouts} == {2}
    world.announce(first, second)
    assert {r.versions[0] for r in world.answer(PROMPTS).rollouts} == {3}
    assert (world.sent.versions, world.weights.version) == ([2, 3], 3)


def test_the_matrices_of_an_adapter_travel_beside_the_base_that_it_is_added_to(world, http):
    world.announce(Generator(http, "a"))
    weights = world.weights
    world.publish(1)
    world.publish(2)
    assert weights.figures() == {"broadcast_bytes": 14, "generators_paused_seconds": 1.0}
    world.policy.adapter = SimpleNamespace(fingerprint={"base": "b"}, scale=2.0, transposed=())
    world.publish(1)
    assert world.sent.came == [["of all"]] * 2 + [["of the base", "of the version"]]
    assert weights.figures() == {"broadcast_bytes": 107, "generators_paused_seconds": 0.5}
    assert weights.figures() == {"broadcast_bytes": 0, "generators_paused_seconds": 0}


def test_frozen_weights_are_a_base_but_for_generators_that_keep_nothing_between_steps(world, http, tmp_path):
    world.announce(Generator(http, "a"))
    world.policy.frozen = "f"
    world.publish(1)
    taking_turns = Publisher(world.ctx, world.policy, world.sent, turns=GpuTurns(tmp_path, []))
    if not distributed.is_initialized():  # one for all tests of this process
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    taking_turns.publish(1, lambda: None)
    world.policy.adapter = SimpleNamespace(fingerprint={"base": "b"}, scale=2.0, transposed=())
    taking_turns.publish(1, lambda: None)
    beside = ["of the base", "of the version"]
    assert world.sent.came == [beside, ["of all"], beside]


def test_those_that_hold_weights_are_asked_what_they_serve(world, http):
    first, second = Generator(http, "a"), Generator(http, "b")
    world.announce(first)
    world.publish(0)
    world.announce(first, second)
    assert world.weights.changed() == ""
    world.publish(0)
    assert world.weights.changed().startswith("b (worker 0): x is no longer")
    assert world.sent.looked == [["a"], ["a", "b"]]


def test_prompts_of_one_that_is_drained_midway_wait_for_the_next(world, http):
    first, second = Generator(http, "first"), Generator(http, "second")
    first.open.clear()
    world.announce(first)
    world.publish(0)
    counts: list[int] = []
    asking = threading.Thread(target=lambda: counts.append(len(world.answer(PROMPTS).rollouts)))
    asking.start()
    while len(first.asked) < 2:
        assert asking.is_alive()
    world.announce(second, draining=(first,))
    first.open.set()
    asking.join(120)
    assert counts == [len(PROMPTS)]
    assert (len(first.asked), len(second.asked)) == (2, len(PROMPTS) - 2)


def test_generators_that_live_and_fail_at_everything_fail_the_run(world, http):
    bad = Generator(http, "bad", fails=0, status=500)
    world.announce(bad)
    world.publish(0)
    with pytest.raises(Unavailable, match=r"no generator answers: 3 times in a row, all failed: .*HTTP 500"):
        world.answer(PROMPTS)
    assert len(world.sent.members) == REFUSALS


def test_a_generator_that_dies_again_and_again_is_asked_as_long_as_its_responses_grow(http):
    """As on spot machines, whose lives are shorter than a long response."""
    world, server = World(http, max_new_tokens=REFUSALS + 2), Generator(http, "a", fails=0, status=0)
    world.announce(server)
    world.publish(0)
    responses = world.answer(PROMPTS[:2])
    assert [len(rollout.tokens) for rollout in responses.rollouts] == [REFUSALS + 2] * 2


def test_responses_come_in_batches_while_others_are_still_generated(world, http):
    server = Generator(http, "a")
    server.stuck = {prompt.tokens[0] for prompt in PROMPTS[3:]}
    world.announce(server)
    world.publish(0)
    batches = world.rollouts.stream(PROMPTS, 3)
    first = next(batches)
    assert [r.prompt.id for r in first.rollouts] == ["0/0", "0/1", "0/2"]
    eventually(lambda: server.now == 2, "others are under way")
    assert len(server.asked) == 5 < len(PROMPTS)
    server.stuck.clear()
    (rest,) = batches
    assert [r.prompt.id for r in rest.rollouts] == [p.id for p in PROMPTS[3:]], "a short rest joins the last"


def test_a_stream_that_is_left_before_its_end_cancels_what_is_under_way(world, http):
    server = Generator(http, "a")
    server.stuck = {prompt.tokens[0] for prompt in PROMPTS[3:]}
    world.announce(server)
    world.publish(0)
    batches = world.rollouts.stream(PROMPTS, 3)
    next(batches)
    eventually(lambda: server.now == 2, "others are under way")
    batches.close()
    eventually(lambda: server.now == 0, "nobody waits for them")
    assert sorted(server.given_up) == [3, 4]


def test_a_request_to_stop_while_generating_cancels_what_is_under_way(world, http):
    server = Generator(http, "a")
    server.stuck = {prompt.tokens[0] for prompt in PROMPTS[3:]}
    world.announce(server)
    world.publish(0)
    batches = world.rollouts.stream(PROMPTS, 3)
    next(batches)
    eventually(lambda: server.now == 2, "others are under way")
    world.control.stop_requested.set()
    with pytest.raises(Stopped):
        next(batches)
    eventually(lambda: server.now == 0, "nobody waits for them")
    assert sorted(server.given_up) == [3, 4]


@pytest.mark.slow
def test_a_request_to_stop_reaches_every_rank(tmp_path):
    """While they wait for a generator, and for responses, where it is not rank 0 that hears of it."""
    mark_file = str(tmp_path / "asked")
    outputs = run_ranks(2, "tests.unit.trainer.rollout.stopped_ranks", folder=tmp_path, ASKED=mark_file)
    waits = [
        "Stopped: stopped while waiting for the generators",
        "Stopped: stopped while the generators were at work",
    ]
    assert [text.splitlines() for text in outputs] == [waits] * 2


def test_a_stream_goes_on_with_a_replacement(world, http):
    """The one generator fails before the first batch; its prompts are asked of the next, and it is told."""
    first, second = Generator(http, "first", fails=1), Generator(http, "second")
    world.announce(first)
    world.publish(0)
    batches = world.rollouts.stream(PROMPTS, 3)
    world.announce(first, second)
    made = list(batches)
    assert sorted(r.prompt.id for batch in made for r in batch.rollouts) == [p.id for p in PROMPTS]
    assert world.sent.members[0] == ["first"]
    assert "second" in world.sent.members[1]
    assert made[-1].requeued, "on record"


class Cut(Generator):
    """Loses the connection at the end of its first response, after its last token."""

    async def _stream(self, response: Any, body: dict[str, Any], failing: bool) -> None:
        await super()._stream(response, body, failing)
        if body is self.asked[0]:
            self._transport(response).close()


def test_a_response_that_was_complete_when_its_generator_failed_is_an_answer(world, http):
    world.announce(Cut(http, "alone"))
    world.publish(0)
    assert [r.prompt.id for r in world.answer(PROMPTS).rollouts] == [p.id for p in PROMPTS]


def test_weights_that_have_moved_since_a_batch_are_not_sent_as_the_version_that_sampled_it(world, http):
    """The one generator dies after a batch, and another one is there: it gets weights with the next stream."""
    first, second = Generator(http, "first", fails=4), Generator(http, "second")
    world.announce(first)
    world.publish(0)
    batches = world.rollouts.stream(PROMPTS, 2)
    made = [next(batches)]
    world.announce(first, second)
    made += list(batches)
    assert (world.sent.members, world.sent.versions) == ([["first"]], [0])
    assert second.asked == []
    answered = {r.prompt.id for batch in made for r in batch.rollouts}
    assert len(answered) == 4
    assert sorted(made[-1].unanswered) == sorted({p.id for p in PROMPTS} - answered)
    world.rollouts.version = 1
    (rest,) = world.rollouts.stream([p for p in PROMPTS if p.id not in answered], None)
    assert {version for r in rest.rollouts for version in r.versions} == {1}


def test_responses_that_another_one_goes_on_with_are_counted(world, http):
    """The first generator dies after one token of each; the other continues them in the same round."""
    dying, other = Generator(http, "dying", fails=0, status=0), Generator(http, "other")
    world.announce(dying, other)
    world.publish(0)
    assert len(world.answer(PROMPTS).rollouts) == len(PROMPTS)
    continued = [body for body in other.asked if len(body["prompt"]) > 1]
    assert world.fleet.continued == len(continued) > 0


def test_prompts_that_wait_in_line_behind_those_of_another_round_are_not_given_up(world, http):
    """Held-out prompts, say, while the server is full of requests that run ahead: it works on one at a time here, and
    they wait for longer than the deadline of a token."""
    server, turn = Generator(http, "a"), asyncio.Lock()
    plain = server._stream

    async def one_at_a_time(*arguments) -> None:
        async with turn:
            while len(server.asked) < 3:
                await asyncio.sleep(0.01)
            await plain(*arguments)

    server._stream = one_at_a_time
    world.announce(server)
    world.publish(0)
    ahead = world.rollouts.requests
    ahead.waiting = world.fleet.fresh(PROMPTS[:2])
    server.slow = {prompt.tokens[0]: [200.0] * 2 for prompt in PROMPTS[:2]}
    with deadlines.clock() as clock:
        server.wait = clock.wait
        ahead.begin()
        eventually(lambda: len(server.asked) == 2, "both are in line")
        responses = world.answer(PROMPTS[2:3])
        assert clock.now == 800
    assert [rollout.prompt for rollout in responses.rollouts] == PROMPTS[2:3]
    assert (list(responses.requeued), responses.refused) == ([], {})


def test_refused_prompts_are_told(world, http):
    world.announce(Generator(http, "picky", fails=5, status=400))
    world.publish(0)
    responses = world.answer(PROMPTS)
    assert len(responses.rollouts) == 5
    assert len(responses.refused) == 3
    assert len(world.answer(PROMPTS).refused) == len(PROMPTS)
