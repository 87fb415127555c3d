"""Responses from generators: what is read from a reply, and prompts that outlive the generator they went to."""

import asyncio
import math
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from aiohttp import web
from tests.support.clocks import deadlines
from tests.support.clocks.deadlines import Clock
from tests.support.kubernetes.kube import eventually
from tests.support.tiny.models import byte_tokenizer
from tests.unit.trainer.scoring.servers import IN_STREAM, Generator

from rlhf_api.contract.run import Member
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.evaluation import Penalties
from rlhf_api.sections.sampling import Sampling, Thinking
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.dispatch.assignments import Limits
from rlhf_trainer.dispatch.dispatch import Observer
from rlhf_trainer.dispatch.outcomes import Interrupted
from rlhf_trainer.process import progress
from rlhf_trainer.rollout.clients.thought_budget import ThoughtBudget
from rlhf_trainer.rollout.clients.vllm_client import VllmClient, request_seed
from rlhf_trainer.rollout.in_flight.rounds import Round, start_round
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response, never
from rlhf_trainer.tensors.records import Prompt, Rollout
from rlhf_trainer.transport import http as module
from rlhf_trainer.transport.frames import NO_VERSION, Kind, encode, encode_error
from rlhf_trainer.transport.http import HttpClient, HttpError

PATIENCE_SECONDS = 120.0
PROMPTS = [Prompt(f"0/{i}", (i, i + 1), {}) for i in range(12)]


def test_what_comes_piece_by_piece_becomes_a_rollout():
    work = PartialRollout.begin(PROMPTS[0], 1)
    (response,) = work.responses
    add(response, 5, version=3)
    add(response, 6, 7, version=3)
    assert (work.begun, work.is_complete, work.unfinished) == (True, False, [0])
    add(response, 8, version=4)
    response.finish("stop")
    assert (work.is_complete, work.unfinished) == (True, [])
    (made,) = work.rollouts()
    assert (list(made.tokens), list(made.logprobs)) == ([5, 6, 7, 8], [-0.5] * 4)
    assert (list(made.versions), made.finished) == ([3, 3, 3, 4], True)
    response.finish("length")
    assert not work.rollouts()[0].finished


def add(response: Response, *tokens: int, version: int = 0) -> Response:
    response.add(array("i", tokens), array("f", [-0.5] * len(tokens)), version)
    return response


def test_a_response_without_what_training_needs_is_an_error():
    with pytest.raises(ValueError, match="no tokens"):
        Response().finish("stop")
    with pytest.raises(ValueError, match="not finished: 'error'"):
        add(Response(), 1).finish("error")


def test_request_seeds_are_stable_and_spread():
    seeds = {
        request_seed(seed, f"{epoch}/{row}") for seed in (0, 1) for epoch in (0, 1) for row in range(500)
    }
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(1, "0/7") == 137764664, "the same on every machine"


@pytest.fixture
def http():
    with HttpClient("token") as background:
        yield background


ENDS = (99, 98)
VOCABULARY = 1000


def client(http: HttpClient, *, answers: int = 2) -> VllmClient:
    sampling = Sampling(responsesPerPrompt=answers, temperature=0.7, topK=900, maxNewTokens=5)
    return VllmClient(http, sampling=sampling, seed=1, ends=ENDS, vocabulary=VOCABULARY)


def start(
    http: HttpClient,
    prompts: list[Prompt],
    members: list[Member],
    *,
    answers: int = 2,
    concurrent: int = 2,
    silence: float = 10 * PATIENCE_SECONDS,
    **more,
) -> "Future[Round]":
    """A round, with a membership that stays as it is."""
    present = {"current": lambda: {m.uid: m for m in members}}
    asker = client(http, answers=answers)
    limits = {"limits": Limits(concurrent, silence)}
    works = more.pop("works", None) or [PartialRollout.begin(prompt, answers) for prompt in prompts]
    return start_round(http, asker, works, members, **(present | limits | more))


def ask(
    http: HttpClient, prompts: list[Prompt], members: list[Member], **more
) -> tuple[list[Rollout], list[Prompt], set[str]]:
    """Responses, prompts without, and the names of those who failed."""
    outcome = start(http, prompts, members, **more).result(PATIENCE_SECONDS)
    return rollouts(outcome), [work.prompt for work in outcome.unanswered], set(outcome.failed)


def rollouts(outcome: Round) -> list[Rollout]:
    return [each for _, work in outcome.results for each in work.rollouts()]


def test_a_prompt_may_have_a_temperature_of_its_own(http):
    server = Generator(http, "a")
    works = [PartialRollout.begin(PROMPTS[0], 1), PartialRollout.begin(PROMPTS[1], 1, temperature=0.0)]
    present = {"current": lambda: {server.member.uid: server.member}}
    start_round(http, client(http), works, [server.member], **present, limits=Limits(1, 10.0)).result(
        PATIENCE_SECONDS
    )
    assert {body["prompt"][0]: body["temperature"] for body in server.asked} == {0: 0.7, 1: 0.0}


def test_a_prompt_whose_responses_are_not_trained_on_is_asked_for_without_sampling_masks(http):
    server = Generator(http, "a")
    asker = VllmClient(http, sampling=Sampling(topK=20, maxNewTokens=5), seed=1, ends=ENDS)
    for masks in (True, False):
        work = PartialRollout.begin(PROMPTS[0], 1, masks=masks)
        server._stream = speaks([[7]] if masks else None)
        http.run(asker.ask(server.member, work, lambda: None))
    assert [body["kept"] for body in server.asked] == [20, 0]


def speaks(masks: list[list[int]] | None):
    """A server's one token of each response, with its sampling mask."""

    async def speak(response: web.StreamResponse, body: dict, *_: object) -> None:
        for k in range(body["n"]):
            await response.write(encode(k, Kind.STOP, 0, [1], [-0.5], masks))

    return speak


def test_answers_come_in_the_order_of_the_prompts(http):
    servers = [Generator(http, "a"), Generator(http, "b")]
    for server in servers:
        server.version = 6
    done, left, failed = ask(http, PROMPTS, [s.member for s in servers])
    assert (left, failed) == ([], set())
    assert [(r.prompt.id, tuple(r.tokens)) for r in done] == [
        (p.id, (p.tokens[0], k)) for p in PROMPTS for k in range(2)
    ]
    assert all(list(r.versions) == [6, 6] for r in done)
    assert all(s.highest <= 2 for s in servers), "no more at once than asked for"
    body = servers[0].asked[0]
    assert (body["n"], body["temperature"], body["top_k"], body["max_tokens"]) == (2, 0.7, 900, 5)
    assert (body["stop_token_ids"], body["stream_interval"]) == ([99, 98], 64)
    seeds = {tuple(b["prompt"]): b["seed"] for s in servers for b in s.asked}
    assert seeds == {p.tokens: request_seed(1, p.id) for p in PROMPTS}, "whoever answers"


def test_everyone_gets_their_share_though_one_could_take_all(http):
    servers = [Generator(http, name) for name in "abc"]
    ask(http, PROMPTS, [s.member for s in servers], concurrent=256)
    assert [len(s.asked) for s in servers] == [4, 4, 4]


def test_the_number_of_prompts_left_is_told(http):
    counts: list[int] = []
    ask(http, PROMPTS, [Generator(http, "a").member], observer=Observer(left=counts.append))
    assert counts == list(range(12, -1, -1))


@pytest.mark.parametrize("status", [0, IN_STREAM, 500, 503])
def test_prompts_of_a_generator_that_fails_go_to_the_other(http, status):
    bad, good = Generator(http, "bad", fails=2, status=status), Generator(http, "good")
    done, left, failed = ask(http, PROMPTS, [bad.member, good.member])
    assert failed == {"bad"}
    assert left == []
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}, "each once, with both answers"


@pytest.mark.parametrize("reason", [Kind.ABORT, None])
def test_answers_that_a_server_cut_off_as_it_ended_are_asked_for_again(http, reason):
    ending, good = Generator(http, "ending"), Generator(http, "good")
    ending.finish_reason = reason
    done, left, failed = ask(http, PROMPTS, [ending.member, good.member])
    assert (left, failed) == ([], {"ending"})
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}
    assert all(r.finished for r in done)


def test_a_generator_that_drains_finishes_what_it_has_and_gets_no_more(http):
    leaving, staying = Generator(http, "leaving"), Generator(http, "staying")
    leaving.open.clear()
    members = {s.member.uid: s.member for s in (leaving, staying)}

    def current() -> dict[str, Member]:
        if len(leaving.asked) == 2:  # as soon as it has its first prompts
            members["leaving"] = leaving.member.model_copy(update={"draining": True})
        return members

    def left(count: int) -> None:
        if count == 2:  # all that are left are with the one that drains
            leaving.open.set()

    done, unanswered, failed = ask(
        http, PROMPTS, [leaving.member, staying.member], current=current, observer=Observer(left=left)
    )
    assert (unanswered, failed) == ([], set())
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}
    assert (len(leaving.asked), len(staying.asked)) == (2, 10)


def test_prompts_of_a_generator_that_is_gone_without_a_word_go_to_the_other(http):
    """A lost node closes no connection; the host takes it out of the membership."""
    lost, staying = Generator(http, "lost"), Generator(http, "staying")
    lost.open.clear()

    def current() -> dict[str, Member]:
        is_lost = len(lost.asked) == 2
        return {s.member.uid: s.member for s in (lost, staying) if not (is_lost and s is lost)}

    done, left, failed = ask(http, PROMPTS, [lost.member, staying.member], current=current)
    assert (left, failed) == ([], {"lost"})
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}


def test_prompts_of_a_server_that_ends_without_answering_go_to_the_other(http):
    """vLLM may close its door and then wait for answers that its engine, which it has stopped, will never give."""
    ending, staying = Generator(http, "ending"), Generator(http, "staying")
    ending.open.clear()
    future = start(http, PROMPTS, [ending.member, staying.member])
    while len(ending.asked) < 2:
        time.sleep(0.01)
    ending.stop_listening()
    outcome = future.result(PATIENCE_SECONDS)  # which is well within the silence of a prompt
    assert set(outcome.failed) == {"ending"}
    assert outcome.unanswered == []
    assert Counter(r.prompt.id for r in rollouts(outcome)) == {p.id: 2 for p in PROMPTS}


def test_prompts_wait_when_everyone_drains(http):
    server = Generator(http, "a")
    draining = {"a": server.member.model_copy(update={"draining": True})}
    assert ask(http, PROMPTS, [server.member], current=lambda: draining) == ([], PROMPTS, set())
    assert server.asked == []


def test_prompts_wait_when_no_generator_is_left(http):
    bad, stopped = Generator(http, "bad", fails=3), Generator(http, "gone")
    stopped.stop()
    one = {"concurrent": 1, "answers": 1}
    done, left, failed = ask(http, PROMPTS, [bad.member, stopped.member], **one)
    assert failed == {"bad", "gone"}
    assert len(done) == 3
    assert [p.id for p in left] == [p.id for p in PROMPTS if p.id not in {r.prompt.id for r in done}]

    again = Generator(http, "again")
    rest, left, failed = ask(http, left, [again.member], **one)
    assert (len(rest), left, failed) == (9, [], set())
    assert ask(http, PROMPTS, []) == ([], PROMPTS, set())


def test_a_request_that_is_refused_is_not_tried_elsewhere(http):
    """Every generator would refuse it, and each would be taken for dead."""
    refuses = Generator(http, "a", fails=0, status=403)
    with pytest.raises(HttpError, match="HTTP 403"):
        ask(http, PROMPTS, [refuses.member])
    assert len(refuses.asked) <= 2, "what was in flight, and no more"


@pytest.mark.parametrize("status", [404, 502, 503])
def test_a_gateway_whose_server_is_gone_is_a_generator_that_failed(status, http):
    """Its own statuses say nothing of our request."""
    gateway, other = Generator(http, "gateway", fails=3, status=status), Generator(http, "other")
    done, left, failed = ask(http, PROMPTS, [gateway.member, other.member])
    assert (len(done), left, failed) == (len(PROMPTS) * 2, [], {"gateway"})


def test_a_generator_that_is_busy_for_ever_costs_its_prompts_their_deadline(http, monkeypatch):
    """Three times, as one that accepts them and is silent."""
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.01)
    busy = Generator(http, "busy", fails=0, status=429)
    with deadlines.clock() as clock:

        def check(_load: Counter[str]) -> None:
            clock.now += 1.0

        clock.on_check = check
        outcome = start(http, PROMPTS[:1], [busy.member], silence=5.0).result(PATIENCE_SECONDS)
    assert [reason for _, reason in outcome.refused] == ["no progress for 5 s, 3 times"]


def test_a_prompt_that_is_refused_is_told_and_the_others_are_answered(http):
    picky = Generator(http, "a", fails=7, status=400)
    outcome = start(http, PROMPTS, [picky.member]).result(PATIENCE_SECONDS)
    assert len(rollouts(outcome)) == 7 * 2
    assert outcome.unanswered == []
    assert outcome.failed == {}
    assert len(outcome.refused) == 5
    assert all(reason.startswith("HTTP 400: ") for _, reason in outcome.refused)
    assert len(picky.asked) == len(PROMPTS), "each once"


def test_prompts_that_go_to_another_generator_are_told(http):
    bad, good = Generator(http, "bad", fails=2), Generator(http, "good")
    outcome = start(http, PROMPTS, [bad.member, good.member]).result(PATIENCE_SECONDS)
    assert 1 <= len(outcome.requeued) <= 2, "what was with the one that failed"
    assert len(bad.asked) - 2 == len(outcome.requeued)


@pytest.fixture
def clock() -> Iterator[Clock]:
    with deadlines.clock() as clock:
        yield clock


def test_a_prompt_that_takes_long_is_not_given_up_while_its_tokens_come(http, clock):
    """Six events, each less than the deadline after the one before, and together longer than it."""
    server = Generator(http, "a")
    server.slow[PROMPTS[0].tokens[0]], server.wait = [6.0] * 6, clock.wait
    outcome = start(http, PROMPTS, [server.member], answers=3, silence=20.0).result(PATIENCE_SECONDS)
    assert clock.now == 36
    assert len(rollouts(outcome)) == 3 * len(PROMPTS)
    assert (outcome.refused, outcome.requeued, outcome.failed) == ([], [], {})


def test_a_prompt_that_waits_in_line_is_not_given_up_while_others_get_tokens(http, clock):
    """The server works on one at a time, and the last waits for longer than the deadline."""
    server, turn = Generator(http, "a"), asyncio.Lock()
    plain = server._stream

    async def one_at_a_time(*arguments) -> None:
        async with turn:
            await plain(*arguments)

    server._stream, server.wait = one_at_a_time, clock.wait
    server.slow = {prompt.tokens[0]: [5.0] * 2 for prompt in PROMPTS[:6]}
    future = start(http, PROMPTS[:6], [server.member], answers=1, concurrent=6, silence=20.0)
    outcome = future.result(PATIENCE_SECONDS)
    assert clock.now == 60
    assert len(rollouts(outcome)) == 6
    assert (outcome.refused, outcome.requeued) == ([], [])


def test_a_prompt_without_tokens_fails_and_its_generators_do_not(http, clock):
    """It is retried, first on the other generator, and dropped with the reason after three tries."""
    servers = [Generator(http, name) for name in "ab"]
    bad, works, left = PROMPTS[4], [PartialRollout.begin(prompt, 2) for prompt in PROMPTS], list[int]()
    for server in servers:
        server.stuck.add(bad.tokens[0])

    def check(_load: Counter[str]) -> None:
        """Once all others are done, and both responses have one token more than before, it is late."""
        if left[-1] == 1 and min(len(response.tokens) for response in works[4].responses) > clock.now / 3:
            clock.now += 3.0

    clock.on_check = check
    members = [server.member for server in servers]
    future = start(http, PROMPTS, members, works=works, silence=2.0, observer=Observer(left=left.append))
    outcome = future.result(PATIENCE_SECONDS)
    assert outcome.failed == {}
    assert len(rollouts(outcome)) == 2 * (len(PROMPTS) - 1)
    assert [(work.prompt, reason) for work, reason in outcome.refused] == [
        (bad, "no progress for 2 s, 3 times")
    ]
    assert [work.prompt for work in outcome.requeued] == [bad] * 2
    requests = [[body["prompt"] for body in s.asked if body["prompt"][0] == bad.tokens[0]] for s in servers]
    fresh, first = [*bad.tokens], bad.tokens[0]
    second, third = [*fresh, first], [*fresh, first, first]
    assert sorted(requests, key=len) == [[second] * 2, [fresh, third, third]], (
        "each from where the one before was"
    )
    assert [t for s in servers for t in s.given_up] == [bad.tokens[0]] * 5, "the servers stop working on it"


def test_a_generator_that_is_silent_altogether_gets_nothing_while_others_are_there(http, clock):
    hung, good = Generator(http, "hung"), Generator(http, "good")
    hung.open.clear()
    left, signs = list[int](), set[int]()

    def check(_load: Counter[str]) -> None:
        """Once it has all that is left, and some looks have found nobody late, it is."""
        if (left[-1], len(hung.asked)) == (2, 2):
            signs.add(progress.count())
            clock.now += 3.0 * (len(signs) == 5)

    clock.on_check = check
    future = start(
        http, PROMPTS, [hung.member, good.member], silence=2.0, observer=Observer(left=left.append)
    )
    outcome = future.result(PATIENCE_SECONDS)
    assert len(signs) >= 5, "of progress, one for each look: the wait has a deadline of its own"
    assert outcome.failed == {}, "its host may end it, or it may come back"
    assert outcome.unanswered == []
    assert len(rollouts(outcome)) == 2 * len(PROMPTS)
    assert len(hung.asked) == len(outcome.requeued) == 2


def test_requests_of_a_round_that_is_cancelled_end(http):
    server = Generator(http, "a")
    server.open.clear()
    future = start(http, PROMPTS, [server.member], concurrent=4)
    while len(server.asked) < 4:
        time.sleep(0.01)
    future.cancel()
    eventually(lambda: server.now == 0, "the server stops working on them")
    assert len(server.given_up) == 4


def whole(*frames: bytes) -> bytes:
    return b"".join(frames)


@pytest.mark.parametrize(
    "reply",
    [
        b"{}",
        encode(0, Kind.STOP, 0, [1], [-0.5])[:-1],
        encode(7, Kind.STOP, 0, [1], [-0.5]),
        encode(0, Kind.STOP, 0, [], []),
        encode(0, Kind.TOKENS, 0, [1] * 6, [-0.5] * 6),
        whole(*(encode(k, Kind.LENGTH, 0, [1] * 4, [-0.5] * 4) for k in range(2))),
        whole(encode(0, Kind.STOP, 0, [1], [-0.5]), encode(0, Kind.TOKENS, 0, [2], [-0.5])),
        whole(*(encode(k, Kind.STOP, 0, [VOCABULARY], [-0.5]) for k in range(2))),
        whole(*(encode(k, Kind.STOP, 0, [1], [0.5]) for k in range(2))),
    ],
    ids=[
        *("no frame", "cut off", "no such response", "empty", "more than asked for", "short of the limit"),
        *("after its end", "no token of the model's", "a probability above 1"),
    ],
)
def test_a_reply_that_is_not_understood_is_its_servers_fault(http, reply):
    odd, good = Generator(http, "odd"), Generator(http, "good")

    async def speak(response: web.StreamResponse, *_: object) -> None:
        await response.write(reply)

    odd._stream = speak
    done, left, failed = ask(http, PROMPTS, [odd.member, good.member])
    assert (left, failed) == ([], {"odd"})
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_a_log_probability_that_is_not_finite_fails_its_response_and_not_the_server(http, number):
    """Both engines are odd at one prompt, after a good token; it is given up, and the others are answered."""
    servers = [Generator(http, name) for name in "ab"]
    for server in servers:

        async def speak(
            response: web.StreamResponse, body: dict, failing: bool, usual=server._stream
        ) -> None:
            if body["prompt"][0] != PROMPTS[3].tokens[0]:
                return await usual(response, body, failing)
            return await response.write(
                whole(encode(0, Kind.TOKENS, 0, [1], [-0.5]), encode(0, Kind.STOP, 0, [2], [number]))
            )

        server._stream = speak
    outcome = start(http, PROMPTS, [server.member for server in servers]).result(PATIENCE_SECONDS)
    assert (outcome.failed, outcome.unanswered) == ({}, [])
    ((work, reason),) = outcome.refused
    assert work.prompt.id == PROMPTS[3].id
    assert reason == "the engine failed at a response: a log-probability is not finite, 3 times"
    assert Counter(r.prompt.id for r in rollouts(outcome)) == {
        p.id: 2 for p in PROMPTS if p is not PROMPTS[3]
    }
    assert all(math.isfinite(sum(rollout.logprobs)) for rollout in rollouts(outcome))


def test_a_version_that_no_trainer_has_sent_is_its_servers_fault(http):
    odd, good = Generator(http, "odd"), Generator(http, "good")
    odd.version = NO_VERSION
    done, left, failed = ask(http, PROMPTS, [odd.member, good.member])
    assert (left, failed) == ([], {"odd"})
    assert {version for rollout in done for version in rollout.versions} == {0}


def test_a_token_beyond_the_vocabulary_in_a_mask_is_its_servers_fault(http):
    odd, good = Generator(http, "odd"), Generator(http, "good")

    odd._stream, good._stream = speaks([[VOCABULARY]]), speaks([[VOCABULARY - 1]])
    sampling = Sampling(responsesPerPrompt=2, topK=20, maxNewTokens=5)
    asker = VllmClient(http, sampling=sampling, seed=1, ends=ENDS, vocabulary=VOCABULARY)
    members = [odd.member, good.member]
    works = [PartialRollout.begin(prompt, 2) for prompt in PROMPTS]
    present, limits = {m.uid: m for m in members}, Limits(2, 10.0)
    outcome = start_round(http, asker, works, members, current=lambda: present, limits=limits)
    assert set(outcome.result(PATIENCE_SECONDS).failed) == {"odd"}


def test_a_stop_string_across_two_parts_of_a_response_ends_it(http):
    """The server that goes on with a response knows its own part alone, and goes on."""
    server, tokenizer = Generator(http, "a"), byte_tokenizer()

    async def speak(response: web.StreamResponse, *_: object) -> None:
        await response.write(encode(0, Kind.TOKENS, 0, tokenizer("D, and")["input_ids"], [-0.5] * 6))
        await response.write(encode(0, Kind.STOP, 0, tokenizer(" more")["input_ids"], [-0.5] * 5))

    server._stream = speak
    for least, expected in ((1, "the END"), (9, "the END, and more")):
        sampling = Sampling(maxNewTokens=40, minNewTokens=least)
        stops = StopStrings(tokenizer, ["END"])
        asker = VllmClient(http, sampling=sampling, seed=1, ends=ENDS, stops=stops)
        work = PartialRollout.begin(PROMPTS[0], 1)
        add(work.responses[0], *tokenizer("the EN")["input_ids"])
        http.run(asker.ask(server.member, work, lambda: None))
        (rollout,) = work.rollouts()
        assert (tokenizer.decode(list(rollout.tokens)), rollout.finished) == (expected, True)
        assert len(rollout.logprobs) == len(rollout.versions) == len(expected)


def test_interrupted_responses_keep_what_comes_after_the_first_of_them_has_ended(http):
    """Each is a request of its own, and a server interrupts them one after the other."""
    server, interrupted = Generator(http, "a"), asyncio.Event()

    async def speak(response: web.StreamResponse, body: dict, *_: object) -> None:
        if body["prompt"][-1] == 5:
            await response.write(encode(0, Kind.ABORT, 0, [], []))
            interrupted.set()
        else:
            await interrupted.wait()
            await asyncio.sleep(0.2)
            await response.write(encode(0, Kind.ABORT, 0, [7, 8], [-0.5] * 2))

    server._stream = speak
    work = PartialRollout.begin(PROMPTS[0], 2)
    for response, token in zip(work.responses, (5, 6), strict=True):
        add(response, token)
    with pytest.raises(Interrupted):
        http.run(client(http).ask(server.member, work, lambda: None))
    assert [list(response.tokens) for response in work.responses] == [[5], [6, 7, 8]]
    assert server.given_up == []


def test_a_thought_is_closed_at_its_budget_by_tokens_that_nobody_sampled(http):
    """One that ended before goes on as it is; one that another request began has the same budget."""
    server, tokenizer = Generator(http, "a"), byte_tokenizer()

    async def speak(response: web.StreamResponse, body: dict, *_: object) -> None:
        for k in range(body["n"]):
            text = "b>" if k else "aa"
            text = " yes" if ">" in tokenizer.decode(body["prompt"]) else text.ljust(body["max_tokens"], "c")
            kind = Kind.STOP if text == " yes" else Kind.LENGTH
            await response.write(encode(k, kind, 0, tokenizer(text)["input_ids"], [-0.5] * len(text)))

    server._stream = speak
    sampling = Sampling(maxNewTokens=20, minNewTokens=9, thinking=Thinking(budget=8, end=">", closing="!>+"))
    budget = ThoughtBudget.of(sampling, tokenizer)
    asker = VllmClient(http, sampling=sampling, seed=1, ends=ENDS, thought=budget)
    fresh, begun, whole = (PartialRollout.begin(PROMPTS[i], n) for i, n in enumerate((2, 1, 1)))
    add(begun.responses[0], *tokenizer("ddd")["input_ids"])
    add(whole.responses[0], *tokenizer("eeeeeeee")["input_ids"])
    made = list[tuple[str, str]]()
    begun.closing = lambda: True
    with pytest.raises(Interrupted):
        http.run(asker.ask(server.member, begun, lambda: None))
    assert tokenizer.decode(list(begun.responses[0].tokens)) == "dddaaccc", "the next round goes on"
    begun.closing = never
    for work in (fresh, begun, whole):
        http.run(asker.ask(server.member, work, lambda: None))
        for each in work.rollouts():
            assert each.finished
            made.append((tokenizer.decode(list(each.tokens)), "".join(map(str, each.sampled))))
    assert made == [
        ("aacccccc!>+ yes", "111111110001111"),
        ("b>cccccc yes", ""),
        ("dddaaccc!>+ yes", "111111110001111"),
        ("eeeeeeee!>+ yes", "111111110001111"),
    ]
    requested = [(body["max_tokens"], body["min_tokens"]) for body in server.asked]
    assert requested == [(5, 5), (8, 8), (9, 0), (12, 1), (9, 0), (9, 0)]


def test_a_budget_that_leaves_no_answer_is_an_error_with_the_tokens_of_its_closing():
    with pytest.raises(
        InvalidJob, match=r"8 tokens and the 8 of closing are 16, and sampling.maxNewTokens is 16"
    ):
        ThoughtBudget.of(Sampling(maxNewTokens=16, thinking=Thinking(budget=8)), byte_tokenizer())


def test_a_response_whose_tokens_are_counted_is_begun_anew(http):
    """A server that goes on would take what there was for the prompt, and not count it."""
    server = Generator(http, "a")
    works = [
        PartialRollout.begin(PROMPTS[i], 1, None, Penalties(*given))
        for i, given in enumerate([(2.0,), (1.0, 0.5)])
    ]
    for work in works:
        add(work.responses[0], 5)
        http.run(client(http, answers=1).ask(server.member, work, lambda: None))
    assert [body["prompt"] for body in server.asked] == [[*PROMPTS[0].tokens, 5], [*PROMPTS[1].tokens]]
    assert [(b["repetition_penalty"], b["presence_penalty"]) for b in server.asked] == [
        (2.0, 0.0),
        (1.0, 0.5),
    ]
    assert works[1].is_complete


def test_a_refusal_within_the_stream_is_one_of_the_prompt(http):
    server = Generator(http, "a")
    plain = server._stream

    async def speak(response: web.StreamResponse, body: dict, failing: bool) -> None:
        if body["prompt"][0] == 3:
            await response.write(encode_error(400, "too long"))
        else:
            await plain(response, body, failing)

    server._stream = speak
    outcome = start(http, PROMPTS, [server.member]).result(PATIENCE_SECONDS)
    assert [(work.prompt, reason) for work, reason in outcome.refused] == [(PROMPTS[3], "HTTP 400: too long")]
    assert (len(outcome.results), outcome.failed) == (11, {})
