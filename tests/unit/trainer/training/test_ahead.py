"""Generation ahead of training: no token older than the bound, whatever happens to the generators."""

import asyncio
import threading
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.kubernetes.kube import eventually
from tests.unit.trainer.rollout.test_fleet import World
from tests.unit.trainer.scoring.servers import Generator, send

from rlhf_trainer.dispatch.outcomes import UnderWay
from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.rollout.in_flight import requests
from rlhf_trainer.rollout.in_flight.rounds import Round
from rlhf_trainer.rollout.in_flight.saved_responses import BLOB, decode, encode
from rlhf_trainer.rollout.partial_rollout import Ended, PartialRollout, Response, nobody
from rlhf_trainer.tensors.records import Given, Prompt
from rlhf_trainer.transport.frames import Kind, encode_error
from rlhf_trainer.transport.http import HttpClient

PROMPTS = 3
LENGTH = 4


class Sampler(Generator):
    """A response is LENGTH tokens, each of which is the weight version that the server has at that moment. New weights
    end responses under way, as a real one does, unless it keeps them."""

    pause = 0.0
    keep = False
    through = 10**6
    """How many requests are answered at once; those after them stop in their middle, until new weights come."""

    async def _stream(self, response: web.StreamResponse, body: dict[str, Any], failing: bool) -> None:  # noqa: ARG002
        version, number = self.version, len(self.asked)
        for place in range(body["max_tokens"]):
            await asyncio.sleep(self.pause)
            while number > self.through and place == LENGTH // 2 and self.version == version:
                await asyncio.sleep(0.01)
            if self.keep:
                version = self.version
            if self.version != version:
                for k in range(body["n"]):
                    await send(response, k, [], Kind.ABORT)
                return
            last = place == body["max_tokens"] - 1
            for k in range(body["n"]):
                await send(response, k, [version], Kind.LENGTH if last else Kind.TOKENS, version)


class Run:
    """A run of many steps whose policy trains in no time."""

    def __init__(
        self, http: HttpClient, staleness: int, in_flight: str = "recompute", ended: Ended = nobody
    ) -> None:
        self.http, self.staleness, self.version, self.issued = http, staleness, 0, 0
        self.keep = in_flight == "keep"
        self.world = World(http, staleness=staleness, in_flight=in_flight, max_new_tokens=LENGTH, ended=ended)
        self.rollouts = self.world.rollouts
        self.servers: list[Sampler] = []

    def join(self, pause: float = 0.0, kind: type[Sampler] = Sampler) -> Sampler:
        server = kind(self.http, f"s{len(self.world.sent.servers)}-{self.issued}-{len(self.servers)}")
        server.pause, server.keep = pause, self.keep
        self.servers.append(server)
        self.world.announce(*self.servers)
        return server

    def lose(self, server: Sampler) -> None:
        self.servers.remove(server)
        self.world.announce(*self.servers)
        server.stop()

    def publish(self) -> None:
        self.rollouts.version = self.version
        self.rollouts.publish(self._issue, collected=False)

    def blob(self) -> bytes:
        return self.rollouts.blobs()[BLOB]()

    def _issue(self) -> list[Prompt]:
        self.issued += PROMPTS
        return [Prompt(f"0/{i}", (1, 2), {}) for i in range(self.issued - PROMPTS, self.issued)]

    def step(self) -> list[str]:
        """Takes an episode and checks each of its tokens; returns the ids of its prompts."""
        rollouts = self.rollouts.episode().rollouts
        for rollout in rollouts:
            assert rollout.versions == rollout.tokens, "a token bears a version that did not sample it"
            assert len(rollout.tokens) == LENGTH
            assert min(rollout.versions) >= self.version - self.staleness
            assert max(rollout.versions) <= self.version
        self.version += 1
        return [rollout.prompt.id for rollout in rollouts]

    def some_are_begun(self) -> bool:
        return any(work.begun and not work.is_complete for work in self.rollouts.requests.waiting)

    def progress(self) -> list[int]:
        """Tokens of each prompt that is begun and waited for."""
        return [
            len(r.tokens) for work in self.rollouts.requests.waiting for r in work.responses if r.end is None
        ]

    def end(self) -> None:
        self.rollouts.requests.cancel()
        for server in self.servers:
            server.stop()


@pytest.fixture(scope="module")
def http() -> Iterator[HttpClient]:
    with HttpClient("token") as http:
        yield http


events = st.lists(
    st.tuples(st.sampled_from(["nothing", "join", "slow", "lose", "rejoin"]), st.integers(0, 5)), max_size=8
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(staleness=st.integers(1, 3), in_flight=st.sampled_from(["recompute", "keep"]), events=events)
def test_no_token_is_older_than_the_bound_and_every_prompt_is_trained_on_once(
    http, staleness, in_flight, events
):
    run = Run(http, staleness, in_flight)
    try:
        run.join()
        taken: list[str] = []
        run.publish()
        for event, which in events:
            one = run.servers[which % len(run.servers)]
            if event in ("join", "slow"):
                run.join(pause=0.05 if event == "slow" else 0.0)
            elif event == "lose" and len(run.servers) > 1:
                run.lose(one)
            elif event == "rejoin":
                run.lose(one)
                run.join()
            taken += run.step()
            run.publish()
        taken += run.step()
        assert taken == [f"0/{i}" for i in range(len(taken))], "in their order, each once"
    finally:
        run.end()


def test_longer_prompts_come_first_within_an_episode_and_episodes_in_their_order(http):
    """All prompts of the first episode must be trained on now, however short."""
    run = Run(http, staleness=1)
    run.join().open.clear()
    lengths = iter([[1, 3, 2], [7, 9, 8]])
    run.rollouts.publish(lambda: [Prompt(f"0/{n}", (1,) * n, {}) for n in next(lengths)], collected=False)
    assert [len(work.prompt.tokens) for work in run.rollouts.requests.waiting] == [3, 2, 1, 9, 8, 7]
    run.end()


def test_responses_that_new_weights_interrupt_go_on_with_them(http):
    """The episode after the next begins with version 0 and ends with version 1."""
    run = Run(http, 1)
    server = run.join()
    server.through = PROMPTS
    run.publish()
    run.step()
    eventually(run.some_are_begun, "the next ones are")
    run.publish()
    eventually(lambda: run.world.fleet.continued > 0, "they go on")
    server.through *= 10
    run.step()
    assert any(len(body["prompt"]) > 2 for body in server.asked), "asked to go on from where it was"
    run.end()


def half_way(http: HttpClient, *, servers: int = 1) -> Run:
    """A run that keeps what is under way: version 1 has sampled half of the responses of an episode."""
    run = Run(http, 1, "keep")
    for _ in range(servers):
        run.join()
    run.publish()
    pending = run.rollouts.requests
    eventually(lambda: len(pending.answered) == 2 * PROMPTS, "all are there")
    run.step()
    for server in run.servers:
        server.through = 0
    run.publish()
    run.step()
    most = min(PROMPTS, 2 * servers)  # a generator gets two at once
    eventually(lambda: run.progress().count(LENGTH // 2) == most, "as many as are asked are half there")
    return run


def test_responses_that_new_weights_do_not_interrupt_go_on_with_them(http):
    """In their streams. Nobody is asked again, and no generator was idle."""
    run = half_way(http)
    (server,) = run.servers
    before, idle = len(server.asked), run.rollouts.figures
    idle()
    run.publish()
    server.through = 10**6
    assert idle()["generators_idle_seconds"] == 0
    rollouts = run.rollouts.episode().rollouts
    assert [tuple(rollout.versions) for rollout in rollouts] == [(1, 1, 2, 2), (1, 1, 2, 2), (2, 2, 2, 2)]
    fresh = [len(body["prompt"]) for body in server.asked[before:]]
    assert set(fresh) == {2}
    assert len(fresh) <= 1 + PROMPTS
    assert (run.world.fleet.continued, server.given_up) == (0, [])
    run.end()


@pytest.mark.parametrize("dead", [False, True])
def test_responses_of_who_did_not_take_new_weights_go_on_with_who_did(dead, http):
    """The one left out serves the earlier weights, or has died while it was paused."""
    run = half_way(http, servers=2)
    left_out, other = run.servers
    run.world.sent.left_out = {left_out.member.name}
    if dead:
        close = run.rollouts.requests.close
        run.rollouts.requests.close = lambda: (close(), left_out.stop())
    run.publish()
    rollouts = run.rollouts.episode().rollouts
    assert {tuple(rollout.versions) for rollout in rollouts} == {(1, 1, 2, 2)}
    assert (
        sum(len(body["prompt"]) == 2 + LENGTH // 2 for body in other.asked) == run.world.fleet.continued > 0
    )
    run.end()


def test_a_generator_that_joins_at_new_weights_is_asked_while_the_others_go_on(http):
    run = half_way(http)
    (server,) = run.servers
    new = run.join()
    run.publish()
    eventually(lambda: new.asked, "it works")
    assert server.given_up == []
    run.end()


def test_what_was_begun_survives_a_snapshot(http):
    run = Run(http, 2)
    run.join().through = 0
    run.publish()
    eventually(run.some_are_begun, "the first ones are")
    data = run.blob()
    run.end()
    begun = {work.prompt.id: [list(r.tokens) for r in work.responses] for work in decode(data) if work.begun}
    assert begun

    other = Run(http, 2)
    other.rollouts.restore(data)
    server = other.join()
    other.publish()
    assert other.step() == [f"0/{i}" for i in range(PROMPTS)]
    continued = [body["prompt"][2:] for body in server.asked if len(body["prompt"]) > 2]
    expected = [tokens for responses in begun.values() for tokens in responses if 0 < len(tokens) < LENGTH]
    assert sorted(continued) == sorted(expected), "from the very tokens"
    other.end()


class Lingering(Sampler):
    """Says all that there is to say, and does not end the reply: as one that hangs right then."""

    async def _stream(self, response: web.StreamResponse, body: dict[str, Any], failing: bool) -> None:
        await super()._stream(response, body, failing)
        while self.stuck:
            await asyncio.sleep(0.01)


def test_responses_that_are_complete_as_their_round_is_cut_off_are_answers(http, monkeypatch):
    """Otherwise no generator would be asked for them again, and their step would wait for ever."""
    monkeypatch.setattr(requests, "GRACE_SECONDS", 0.0)
    run = Run(http, 1)
    server = run.join(kind=Lingering)
    server.stuck = {1}
    run.publish()
    pending = run.rollouts.requests
    eventually(lambda: any(work.is_complete for work in pending.works), "some are complete")
    run.publish()
    assert len(pending.works) == 2 * PROMPTS, "each is answered or waits"
    server.stuck.clear()
    assert run.step() == [f"0/{i}" for i in range(PROMPTS)]
    run.end()


class Late(PartialRollout):
    """Its last token comes when somebody has just looked: a request that is kept goes on meanwhile."""

    looks = 0

    @property
    def whole(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_response_that_completes_while_its_round_is_looked_at_is_not_lost():
    """Its episode would wait for ever, in rounds that ask for nothing."""
    rounds: list[tuple[list[PartialRollout], list[UnderWay]]] = []

    def start(works, _arrived, _switches, under_way) -> Future[Round]:
        rounds.append((list(works), list(under_way)))
        given: Future[Round] = Future()
        given.set_result(Round([], works, {}, [], [], [UnderWay(work, None, None) for work in works]))
        return given

    pending = requests.Requests(start, lambda _failed: None, threading.Event(), keep=True)
    pending.waiting = [Late(Prompt("0/0", (1,), {}), [])]
    for _ in range(2):
        pending.begin()
        pending.end()
    (first, _), *later = rounds
    known = {work.prompt.id for work in (*pending.waiting, *pending.answered.values())}
    assert known == {"0/0"}
    assert len(first) == 1
    assert all(len(works) == len(under_way) == 1 for works, under_way in later)


class Held(Sampler):
    """Requests from number `most` on wait."""

    most = 0

    async def _stream(self, response: web.StreamResponse, body: dict[str, Any], failing: bool) -> None:
        number = len(self.asked)
        while number > self.most:
            await asyncio.sleep(0.01)
        await super()._stream(response, body, failing)


def test_generators_are_idle_once_the_last_response_has_come_and_not_before(http):
    """Also if an episode of the same round was collected meanwhile."""
    run = Run(http, 2)
    server: Any = run.join(kind=Held)
    run.publish()
    server.most = PROMPTS + 2
    run.step()
    server.most = 3 * PROMPTS - 1
    pending = run.rollouts.requests
    eventually(lambda: len(pending.answered) == 2 * PROMPTS - 1, "one is under way")
    assert run.rollouts.figures()["generators_idle_seconds"] == 0
    server.most += 1
    eventually(lambda: run.rollouts.figures()["generators_idle_seconds"] > 0, "none is")
    run.end()


class Refusing(Sampler):
    """Of the first prompt."""

    async def _stream(self, response: web.StreamResponse, body: dict[str, Any], failing: bool) -> None:
        if len(self.asked) == 1:
            await response.write(encode_error(400, "too long"))
        else:
            await super()._stream(response, body, failing)


def test_generators_are_idle_once_the_last_prompt_is_refused(http):
    run = Run(http, 1)
    run.join(kind=Refusing)
    run.publish()
    eventually(lambda: run.rollouts.figures()["generators_idle_seconds"] > 0, "all is answered or refused")
    run.end()


def test_generators_that_answer_other_prompts_are_not_idle(http, monkeypatch):
    """Held-out ones, say."""
    run, clock = Run(http, 1), SimpleNamespace(now=0.0)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: clock.now))
    server = run.join()
    run.publish()

    def idle() -> bool:
        clock.now += 1
        return run.rollouts.figures()["generators_idle_seconds"] > 0

    eventually(idle, "all that was requested ahead is there")
    plain = server._stream

    async def slowly(*arguments: Any) -> None:
        clock.now += 100
        await plain(*arguments)

    monkeypatch.setattr(server, "_stream", slowly)
    run.world.answer([Prompt("-1/0", (1, 2), {})])
    assert clock.now > 100
    assert run.rollouts.figures()["generators_idle_seconds"] == 0
    clock.now += 3
    assert run.rollouts.figures()["generators_idle_seconds"] == 3
    run.end()


def test_a_generator_that_failed_and_has_new_weights_is_asked_again(http):
    """It failed during the update, and joined the broadcast after it."""
    run = Run(http, 1)
    failing, other = run.join(), run.join()
    failing._fails = 0
    run.publish()
    pending = run.rollouts.requests
    eventually(lambda: len(pending.answered) == 2 * PROMPTS, "the other one has answered everything")
    assert failing.asked
    run.step()
    failing._fails, before = None, len(failing.asked)
    run.publish()
    assert run.world.sent.members[-1] == [failing.member.name, other.member.name]
    run.step()
    run.step()
    assert len(failing.asked) > before
    run.end()


@pytest.mark.parametrize(
    ("more", "length", "version", "prompt"),
    [(1, 1, 6, (1, 2)), (0, LENGTH + 1, 6, (1, 2)), (0, 1, 5, (1, 2)), (0, 1, 6, (1, 3))],
    ids=["more", "longer", "older", "prompt"],
)
def test_responses_that_the_job_no_longer_asks_for_are_begun_anew(http, more, length, version, prompt):
    """As after settings were changed in a clone: a group has as many responses as the job says, none is longer, or
    older than the bound where its step comes later now, and all are to the prompt as it reads now."""
    tokens = array("i", [version] * length)
    old = Response(tokens, array("f", [-0.5] * length), tokens[:])
    run = Run(http, 1)
    run.version = 7
    group_size = run.world.ctx.spec.sampling.responses_per_prompt
    run.rollouts.restore(
        encode([PartialRollout(Prompt("0/0", prompt, {}), [old.copy() for _ in range(group_size + more)])])
    )
    server = run.join()
    run.publish()
    assert Counter(run.step()) == {f"0/{i}": group_size for i in range(PROMPTS)}
    assert all(body["prompt"] == [1, 2] for body in server.asked), "nothing is gone on with"
    run.end()


class Mixed(Run):
    """Of each episode the last prompt has a given response, if any has."""

    given: Given | None = Given((8, 9), (True, True), finished=True)

    def _issue(self) -> list[Prompt]:
        *others, last = super()._issue()
        return [*others, replace(last, given=self.given)]


def test_given_responses_wait_for_their_episode_and_are_no_part_of_a_snapshot(http):
    run = Mixed(http, 1)
    run.join()
    run.publish()
    rollouts = run.rollouts.episode().rollouts
    assert [list(r.tokens) for r in rollouts if r.prompt.given] == [[8, 9]]
    assert [r.prompt.id for r in rollouts] == [f"0/{i}" for i in range(PROMPTS)]
    saved = {work.prompt.id for work in decode(run.blob())}
    assert saved == {f"0/{i}" for i in range(PROMPTS, 2 * PROMPTS - 1)}
    run.end()


def test_a_prompt_that_now_has_a_given_response_does_not_go_on_with_a_sampled_one(http):
    begun = Response(array("i", [7]), array("f", [-0.5]), array("i", [7]))
    run = Mixed(http, 1)
    run.version = 7
    run.rollouts.restore(encode([PartialRollout(Prompt(f"0/{PROMPTS - 1}", (1, 2), {}), [begun])]))
    run.join()
    run.publish()
    assert [8, 9] in [list(rollout.tokens) for rollout in run.rollouts.episode().rollouts]
    run.end()


def test_each_response_is_handed_on_once_at_its_end_also_one_of_a_snapshot(http):
    """So that it is scored during training, and by the first trainer after a restart."""
    ended = list[tuple[str, list[int]]]()
    run = Run(http, 1, ended=lambda prompt, r: ended.append((prompt.id, r.tokens.tolist())))
    run.version = 7
    tokens = array("i", [7] * LENGTH)
    whole, begun = Response(tokens, array("f", [-0.5] * LENGTH), tokens[:], "length"), Response()
    group_size = run.world.ctx.spec.sampling.responses_per_prompt
    run.rollouts.restore(
        encode([PartialRollout(Prompt("0/0", (1, 2), {}), [whole, *[begun] * (group_size - 1)])])
    )
    run.join()
    run.publish()
    assert ended[0] == ("0/0", tokens.tolist())
    run.step()
    assert Counter(name for name, _ in ended if name in {f"0/{i}" for i in range(PROMPTS)}) == {
        f"0/{i}": group_size for i in range(PROMPTS)
    }
    run.end()


def test_what_is_gone_on_with_may_be_as_old_as_its_step_allows(http):
    """The first prompt of the second episode, begun when the weights of the last step came."""
    run = Run(http, 2)
    run.version = 7
    begun = Response(array("i", [6]), array("f", [-0.5]), array("i", [6]))
    run.rollouts.restore(encode([PartialRollout(Prompt(f"0/{PROMPTS}", (1, 2), {}), [begun])]))
    server = run.join()
    run.publish()
    run.step()
    run.step()
    assert [1, 2, 6] in [body["prompt"] for body in server.asked]
    run.end()


def test_what_is_added_after_a_snapshot_is_not_in_it():
    whole = Response(array("i", [5]), array("f", [-0.5]), array("i", [3]), "stop")
    work = PartialRollout(
        Prompt("0/1", (1,), {}), [whole, Response(array("i", [7]), array("f", [-1.5]), array("i", [4]))]
    )
    frozen = work.frozen()
    work.responses[1].add(array("i", [8]), array("f", [-0.5]), 5)
    assert [list(r.tokens) for r in frozen.responses] == [[5], [7]]
    assert frozen.responses[0] is whole, "no copy of what nobody adds to"


def test_a_stop_ends_the_wait(http):
    run = Run(http, 1)
    run.join(pause=60.0)
    run.publish()
    run.world.ctx.stop.set()
    with pytest.raises(Stopped):
        run.step()
    run.end()


def test_an_episode_that_is_not_trained_on_after_all_is_the_first_one_again(http):
    """As where the run is to stop while its responses are scored."""
    run = Run(http, 1)
    run.join()
    run.publish()
    taken = run.rollouts.episode().rollouts
    run.rollouts.put_back()
    assert run.rollouts.episode().rollouts == taken
    run.rollouts.put_back()
    run.rollouts.put_back()
    ids = {f"0/{i}" for i in range(PROMPTS)}
    assert ids <= {work.prompt.id for work in decode(run.blob())}
    assert [r.prompt.id for r in run.rollouts.episode().rollouts] == sorted(ids)
    run.end()


def test_a_stop_while_an_episode_is_awaited_does_not_put_back_the_one_before(http):
    """The earlier one was trained on; no broadcast came in between, as with weights.everySteps 2."""
    run = Run(http, 1)
    run.join().through = PROMPTS
    run.publish()
    trained = set(run.step())
    run.world.ctx.stop.set()
    with pytest.raises(Stopped):
        run.rollouts.episode()
    run.rollouts.put_back()
    assert not trained & {work.prompt.id for work in decode(run.blob())}
    run.end()
