"""The trainer's questions to reward and reference over real HTTP: spread, in order, and through failures."""

import math
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from aiohttp import web
from tests.support.clocks import deadlines
from tests.support.clocks.deadlines import Clock
from tests.support.kubernetes.kube import eventually
from tests.support.ports import free_port

from rlhf_api.contract.proof import Prover
from rlhf_api.contract.run import Member, Membership
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.roles import HEALTH, Role
from rlhf_trainer.dispatch.control import Control
from rlhf_trainer.dispatch.roster import Roster, Stopped, Unavailable
from rlhf_trainer.scoring import client as module
from rlhf_trainer.scoring.client import Scorer
from rlhf_trainer.scoring.messages import SCORE_ROUTE, pack, rows_of, unpack
from rlhf_trainer.scoring.questions import Question
from rlhf_trainer.scoring.server import application
from rlhf_trainer.tensors.batches import plan
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.tensors.sampling_mask import WHOLE, Kept
from rlhf_trainer.transport.http import HttpClient, HttpError
from rlhf_trainer.transport.wire import WireError, decode, encode

TOKEN = "token-of-tests"
SEQUENCES = Sequences.pack([((i,), (i + 1,) * (1 + i % 3)) for i in range(7)])
ROWS = [{"score": i * 1.5} for i in range(7)]
LONG = 120.0
"""More than anything takes, on a busy machine too; seconds."""
CHUNKS = 3
"""Of SEQUENCES, as `Trainer.scorer` makes them."""
FIELD = "spec.reward.functions[0].function"


class Trainer:
    """The trainer's side, with the members that a host has told it of."""

    def __init__(self, http: HttpClient) -> None:
        self.control, self.http = Control(total_steps=1), http
        self.roster = Roster(self.control, http)

    def know(self, *members: Member) -> None:
        self.control._membership = Membership(members=members)
        self.control.membership_changed.set()

    def scorer(
        self,
        *,
        tokens: int = 8,
        timeout: float = LONG,
        patience: float = LONG,
        left: Callable[[int], None] = lambda _count: None,
    ) -> Scorer:
        """Its chunks have at most `tokens` padded tokens: SEQUENCES, whose lengths are 2 to 4, are CHUNKS of them."""
        return Scorer(
            Role.REWARD,
            SCORE_ROUTE,
            http=self.http,
            roster=self.roster,
            chunk_tokens=tokens,
            timeout=timeout,
            patience=patience,
            left=left,
        )


def proven() -> Prover:
    return Prover(TOKEN, "127.0.0.1", free_port())


class Server:
    """A reward server that returns each row's own score, after `first` was called with the number of the chunk."""

    def __init__(self, http: HttpClient, name: str, first=lambda _number: None) -> None:
        self.batches: list[int] = []
        self.lengths: list[list[int]] = []
        self.arrived = self.left = 0
        """Chunks that it has begun to read; those of them that it has answered, or whose client has gone."""
        self._http = http

        @web.middleware
        async def counted(request: web.Request, handler):
            chunk = request.path == SCORE_ROUTE
            self.arrived += chunk
            try:
                return await handler(request)
            finally:
                self.left += chunk

        def scores(message):
            sequences, rows = unpack(message), rows_of(message)
            self.batches.append(len(sequences))
            self.lengths.append(sequences.lengths.tolist())
            first(len(self.batches))
            return {"scores": torch.tensor([row["score"] for row in rows]).double()}, {}

        prover = proven()
        app = application(SCORE_ROUTE, scores, prover)
        app.middlewares.append(counted)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        self.address = f"http://127.0.0.1:{prover.port}"
        http.run(self._start(prover.port))
        self.member = Member(role=Role.REWARD, name=name, uid=self.address, address=self.address)

    async def _start(self, port: int) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()

    def die(self) -> None:
        self._http.run(self._runner.cleanup())


@pytest.fixture
def trainer(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.05)
    with HttpClient(TOKEN) as http:
        yield Trainer(http)


def expected() -> list[float]:
    return [row["score"] for row in ROWS]


def test_a_batch_is_spread_over_the_members_and_comes_back_in_order(trainer):
    meet = threading.Barrier(2)
    servers = [Server(trainer.http, f"reward-{i}", lambda n: n == 1 and meet.wait(LONG)) for i in range(2)]
    trainer.know(*(server.member for server in servers))
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == expected()
    assert sum(batch for server in servers for batch in server.batches) == len(SEQUENCES)
    one = SEQUENCES.select(torch.tensor([5]))
    assert trainer.scorer().ask(one, "scores", ROWS[5:6]).tolist() == [7.5], "fewer rows than members"


def test_the_number_of_responses_without_a_reply_is_told_while_they_are_waited_for(trainer):
    """The second chunk is held until the replies to the first are counted."""
    counts, counted = list[int](), threading.Event()

    def left(count: int) -> None:
        counts.append(count)
        if 0 < count < len(SEQUENCES):
            counted.set()

    trainer.know(Server(trainer.http, "reward-0", lambda number: number == 2 and counted.wait(LONG)).member)
    trainer.scorer(left=left).ask(SEQUENCES, "scores", ROWS)
    assert counted.is_set()
    assert counts[-1] == 0
    assert counts == sorted(set(counts), reverse=True), "each change once"


def test_chunks_are_the_micro_batches_of_the_whole(trainer):
    """A row's output depends in its last bits on the rows beside it; chunks, so scores, do not depend on the number of
    members."""
    server = Server(trainer.http, "reward-0")
    trainer.know(server.member)
    trainer.scorer(tokens=9).ask(SEQUENCES, "scores", ROWS)
    (whole,) = plan(SEQUENCES.lengths.tolist(), 1, 9)
    sent = [plan(lengths, 1, 9)[0] for lengths in server.lengths]
    assert all(len(batches) == 1 for batches in sent)
    chunks = [[lengths[i] for i in batches[0]] for lengths, batches in zip(server.lengths, sent, strict=True)]
    assert chunks == [[int(SEQUENCES.lengths[i]) for i in rows] for rows in whole]


@pytest.fixture
def clock() -> Iterator[Clock]:
    with deadlines.clock() as clock:
        yield clock


def test_a_batch_may_take_longer_than_the_timeout_of_its_chunks(trainer, clock):
    """Each of six takes 1.5 s, and is looked at before it is done."""

    def works(_number: int) -> None:
        clock.now, checks = clock.now + 1.5, clock.looks
        eventually(lambda: clock.looks > checks, "a look at who is late", LONG)

    trainer.know(Server(trainer.http, "reward-0", works).member)
    scores = trainer.scorer(tokens=4, timeout=4.0).ask(SEQUENCES, "scores", ROWS)
    assert (scores.tolist(), clock.now) == (expected(), 9.0)


def test_a_member_that_is_slow_costs_a_chunk_another_try_and_not_the_batch(trainer, clock):
    """The slow one still works on the first chunk when all others are scored; that one goes to the other member."""
    over = threading.Event()
    slow = Server(trainer.http, "slow", lambda n: n == 1 and over.wait(LONG))
    fast = Server(trainer.http, "fast")
    trainer.know(slow.member, fast.member)

    def check(load: Counter[str]) -> None:
        if slow.batches and not load[fast.member.uid]:
            clock.now = 2.0

    clock.on_check = check
    try:
        assert trainer.scorer(timeout=1.5).ask(SEQUENCES, "scores", ROWS).tolist() == expected()
        assert len(slow.batches) == 1
        assert sum(fast.batches) == len(SEQUENCES)
    finally:
        over.set()


def test_what_is_given_up_is_not_begun(trainer, clock):
    """One chunk is under way and one waits behind it when nobody wants them any more, and the server knows it."""
    over, tries = threading.Event(), 0
    server = Server(trainer.http, "reward-0", lambda n: n == 1 and over.wait(LONG))
    trainer.know(server.member)

    def check(_load: Counter[str]) -> None:
        nonlocal tries
        if server.batches and (server.left, server.arrived) == (2 * tries, 2 * tries + 2):
            tries, clock.now = tries + 1, clock.now + 2.0

    clock.on_check = check
    scorer = trainer.scorer(timeout=1.0)
    with pytest.raises(
        RuntimeError, match=r"failed at 2 responses of \d tokens: no progress for 1 s, 3 times"
    ):
        scorer.ask(SEQUENCES, "scores", ROWS)
    eventually(lambda: server.left == server.arrived == 6, "the server sees that nobody waits", LONG)
    over.set()
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == expected()
    assert len(server.batches) == 1 + CHUNKS


def test_a_member_that_died_is_not_asked(trainer):
    servers = [Server(trainer.http, f"reward-{i}") for i in range(2)]
    trainer.know(*(server.member for server in servers))
    servers[0].die()
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == expected()
    assert sum(servers[1].batches) == 7


def test_asking_outlives_all_members_until_one_is_back_elsewhere(trainer):
    first = Server(trainer.http, "reward-0")
    trainer.know(first.member)
    first.die()
    results: list[torch.Tensor] = []
    asking = threading.Thread(target=lambda: results.append(trainer.scorer().ask(SEQUENCES, "scores", ROWS)))
    asking.start()
    second = Server(trainer.http, "reward-0")
    trainer.know(second.member)
    asking.join(timeout=LONG)
    assert [scores.tolist() for scores in results] == [expected()]


def test_a_member_that_dies_over_a_batch_costs_its_chunks_alone(trainer):
    """One chunk is scored when it goes, and its replacement is asked for the others."""
    second, reached, over = Server(trainer.http, "reward-0"), threading.Event(), threading.Event()

    def goes(number: int) -> None:
        if number == 2:
            reached.set()
            over.wait(LONG)

    first = Server(trainer.http, "reward-0", goes)
    trainer.know(first.member)
    results: list[torch.Tensor] = []
    asking = threading.Thread(target=lambda: results.append(trainer.scorer().ask(SEQUENCES, "scores", ROWS)))
    asking.start()
    assert reached.wait(LONG)
    trainer.know(second.member)
    asking.join(timeout=LONG)
    assert [scores.tolist() for scores in results] == [expected()]
    assert len(second.batches) == CHUNKS - 1
    over.set()


def test_a_member_that_joins_is_asked_while_the_others_work(trainer, monkeypatch):
    """And what the others have begun goes on with them."""
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.01)
    over = threading.Event()
    first, second = (
        Server(trainer.http, f"reward-{i}", lambda n: n == 1 and over.wait(LONG)) for i in range(2)
    )
    trainer.know(first.member)
    scorer = trainer.scorer()
    results: list[torch.Tensor] = []
    asking = threading.Thread(target=lambda: results.append(scorer.ask(SEQUENCES, "scores", ROWS)))
    asking.start()
    eventually(lambda: first.batches, "the first chunk under way", LONG)
    trainer.know(first.member, second.member)
    eventually(lambda: second.batches, "a chunk for the member that has joined", LONG)
    over.set()
    asking.join(timeout=LONG)
    assert [scores.tolist() for scores in results] == [expected()]
    assert len(first.batches) + len(second.batches) == CHUNKS, "none twice"


def test_a_message_may_be_sent_while_others_are_under_way(trainer):
    over = threading.Event()
    server = Server(trainer.http, "reward-0", lambda n: n == 1 and over.wait(LONG))
    trainer.know(server.member)
    scorer = trainer.scorer()

    def send(i: int) -> Question:
        return scorer.send(Question(SEQUENCES.select(torch.tensor([i])), "scores", ROWS[i : i + 1]))

    sent = [send(0)]
    eventually(lambda: server.batches, "the first under way", LONG)
    sent += [send(1), send(2)]
    eventually(lambda: server.arrived == 2, "one more, which is queued there", LONG)
    over.set()
    scorer.wait(sent)
    assert [each.reply.result()[0].tolist() for each in sent] == [[0.0], [1.5], [3.0]]
    assert len(server.batches) == 3


def test_a_chunk_at_which_a_member_raises_is_tried_again(trainer):
    def breaks_once(number: int) -> None:
        if number == 1:
            raise MemoryError("too much at once")

    server = Server(trainer.http, "reward-0", breaks_once)
    trainer.know(server.member)
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == expected()
    assert len(server.batches) == CHUNKS + 1


@pytest.mark.parametrize("status", [404, 502, 503])
def test_a_gateway_whose_server_is_gone_is_waited_for(trainer, status):
    """Longer than the tries of a chunk at which the member itself fails."""
    left = iter([status] * 10)

    @web.middleware
    async def gateway(request: web.Request, handler) -> web.StreamResponse:
        failure = request.path == SCORE_ROUTE and next(left, None)
        return web.Response(status=failure) if failure else await handler(request)

    replies(trainer, lambda sequences: {"scores": torch.ones(len(sequences)).double()}, behind=[gateway])
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == [1.0] * len(SEQUENCES)


def test_a_member_that_is_up_but_always_fails_is_not_asked_for_ever(trainer):
    def breaks(_number: int) -> None:
        raise MemoryError("too much at once")

    trainer.know(Server(trainer.http, "reward-0", breaks).member)
    with pytest.raises(
        RuntimeError, match=r"the reward failed at \d responses .*MemoryError: too much .*3 times"
    ):
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)


def test_the_jobs_own_mistake_names_its_field(trainer):
    def mistaken(_number: int) -> None:
        raise InvalidJob([Problem(FIELD, "the function raised KeyError: 'a: b'")])

    trainer.know(Server(trainer.http, "reward-0", mistaken).member)
    with pytest.raises(InvalidJob) as caught:
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)
    assert caught.value.problems == (Problem(FIELD, "the function raised KeyError: 'a: b'"),)


def replies(trainer: Trainer, make, sent=None, behind=()) -> None:
    """A member that answers each message with the arrays that `make` has of its sequences, or with what `sent` makes of
    that, `behind` middlewares."""
    server = Server(trainer.http, "reward-0")
    prover = proven()
    app = application(SCORE_ROUTE, lambda message: (make(unpack(message)), {}), prover)

    async def other(_request, response) -> None:
        if sent is not None and response.content_type == "application/octet-stream":
            response.body = sent(response.body)

    app.on_response_prepare.append(other)
    app.middlewares.extend(behind)
    runner = web.AppRunner(app)
    trainer.http.run(runner.setup())
    trainer.http.run(web.TCPSite(runner, "127.0.0.1", prover.port).start())
    address = f"http://127.0.0.1:{prover.port}"
    trainer.know(server.member.model_copy(update={"address": address}))


@pytest.mark.parametrize("reply", [{}, {"scores": torch.zeros(99).double()}, {"scores": torch.zeros(2)}])
def test_a_reply_with_other_than_what_was_asked_for_is_an_error(trainer, reply):
    replies(trainer, lambda _: reply)
    with pytest.raises(RuntimeError, match=r"the reply's scores are torch.float64 \[\d\], not .*3 times"):
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_log_probabilities_that_are_no_numbers_are_an_error(trainer, value):
    replies(
        trainer, lambda sequences: {"logprobs": torch.full((int(sequences.response_lengths.sum()),), value)}
    )
    with pytest.raises(RuntimeError, match="the reply's logprobs are not finite, 3 times"):
        trainer.scorer().ask(SEQUENCES, "logprobs")


def test_a_server_in_trouble_fails_its_health_check(trainer):
    troubles = ["vLLM's engine is dead", ""]
    prover = proven()
    runner = web.AppRunner(application(SCORE_ROUTE, lambda _: ({}, {}), prover, troubles.pop))
    trainer.http.run(runner.setup())
    trainer.http.run(web.TCPSite(runner, "127.0.0.1", prover.port).start())
    address = f"http://127.0.0.1:{prover.port}{HEALTH}"
    assert trainer.http.run(trainer.http.json("GET", address, timeout=60)) == {"status": "ok"}
    with pytest.raises(HttpError, match=r"503: .*vLLM's engine is dead"):
        trainer.http.run(trainer.http.json("GET", address, timeout=60))


def test_a_server_that_hangs_over_a_message_fails_its_health_check(trainer):
    """Its host then restarts it; otherwise the next trainer would wait for it again."""
    begun, over = threading.Event(), threading.Event()

    def hangs(_message):
        begun.set()
        over.wait(60)
        return {"scores": torch.zeros(len(SEQUENCES))}, {}

    prover = proven()
    runner = web.AppRunner(application(SCORE_ROUTE, hangs, prover, deadline=0.0))
    trainer.http.run(runner.setup())
    trainer.http.run(web.TCPSite(runner, "127.0.0.1", prover.port).start())
    address = f"http://127.0.0.1:{prover.port}"
    future = trainer.http.start(
        trainer.http.post_bytes(address + SCORE_ROUTE, encode(*pack(SEQUENCES)), 1000)
    )
    assert begun.wait(60)
    with pytest.raises(HttpError, match=r"503: .*one message has taken \d+ s so far"):
        trainer.http.run(trainer.http.json("GET", address + HEALTH, timeout=60))
    over.set()
    assert future.result(60)
    assert trainer.http.run(trainer.http.json("GET", address + HEALTH, timeout=60)) == {"status": "ok"}


def test_nobody_answers_in_time(trainer):
    dead = Server(trainer.http, "reward-0")
    dead.die()
    trainer.know(dead.member)
    with pytest.raises(Unavailable, match=rf"no reward answered within 0 s \(reward-0 at {dead.address}\)"):
        trainer.scorer(patience=0.3).ask(SEQUENCES, "scores", ROWS)
    trainer.know()
    with pytest.raises(Unavailable, match="none was announced"):
        trainer.scorer(patience=0.1).ask(SEQUENCES, "scores", ROWS)


def test_a_request_to_stop_ends_the_wait(trainer):
    trainer.control.stop_requested.set()
    with pytest.raises(Stopped, match="while waiting for the reward"):
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)


def test_a_request_to_stop_ends_the_wait_for_a_member_that_fails(trainer):
    def stops(_sequences):
        trainer.control.stop_requested.set()
        return {"scores": torch.zeros(2)}

    replies(trainer, stops, sent=lambda _reply: b"half a reply")
    with pytest.raises(Stopped, match="while the reward failed"):
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)


def test_a_request_to_stop_ends_long_scoring_and_lets_what_is_short_end(trainer, monkeypatch):
    begun, over = threading.Event(), threading.Event()
    server = Server(trainer.http, "reward-0", lambda n: n == 1 and (begun.set(), over.wait(LONG)))
    trainer.know(server.member)

    def stop() -> None:
        assert begun.wait(LONG)
        trainer.control.stop_requested.set()

    stopping = threading.Thread(target=stop)
    stopping.start()
    monkeypatch.setattr(module, "LAST_SECONDS", 0.5)
    with pytest.raises(Stopped, match="while the reward was scoring"):
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)
    over.set()
    stopping.join()
    monkeypatch.setattr(module, "LAST_SECONDS", 60)
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == expected()


def post(server: Server, body: bytes, token: str = TOKEN) -> tuple[int, str]:
    request = urllib.request.Request(server.address + SCORE_ROUTE, data=body, method="POST")
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_row_travels_once_for_all_responses_to_its_prompt():
    """100 MB of rows are no reason to fail either: safetensors' own header may not be as long."""
    long = {"text": "x" * (1 << 20)}
    rows = [long, {"score": 1}, dict(long), dict(long), {"score": 1}, long, long]
    message = pack(SEQUENCES, rows)
    assert len(message[0]["rows"]) < 1.1 * (1 << 20)
    received = rows_of(decode(encode(*message)))
    assert received == rows
    received[0]["text"] = "a reward function's own business"
    assert received[2] == long
    many = [{"text": "x" * (16 << 20), "i": i} for i in range(7)]
    assert rows_of(decode(encode(*pack(SEQUENCES, many)))) == many


def changed(**arrays: torch.Tensor) -> bytes:
    message, header = pack(SEQUENCES, rows=ROWS)
    return encode(message | arrays, header)


def text(content: str) -> torch.Tensor:
    return torch.tensor(list(content.encode()), dtype=torch.uint8)


GOOD = changed()
ONE = torch.ones(7, dtype=torch.int64)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        GOOD[:-1],
        encode({}),
        changed(tokens=SEQUENCES.tokens[:-1]),
        changed(tokens=SEQUENCES.tokens.float()),
        changed(prompt_lengths=ONE * 0),
        changed(prompt_lengths=SEQUENCES.lengths),
        changed(prompt_lengths=ONE[:3]),
        changed(lengths=SEQUENCES.lengths[None]),
        changed(lengths=SEQUENCES.lengths + (torch.arange(7) < 4) * (1 << 62)),  # their sum wraps around
        encode(*pack(SEQUENCES)),
        encode(*pack(SEQUENCES, rows=ROWS[:3])),
        changed(rows=text("[{}, {}")),
        changed(rows=text("{}")),
        changed(rows=text("[1, 2, 3, 4, 5, 6, 7]")),
        changed(rows=torch.zeros(2)),
        changed(row=ONE * 7),
        changed(row=ONE * -1),
        changed(row=ONE.float()),
    ],
)
def test_what_is_no_batch_is_refused_and_the_server_goes_on(trainer, body):
    server = Server(trainer.http, "reward-0")
    status, text = post(server, body)
    assert (status, bool(text)) == (400, True)
    assert post(server, GOOD, token="wrong")[0] == 401
    assert server.batches == []
    assert post(server, GOOD)[0] == 200


COUNTS = torch.tensor([1, 0, WHOLE, *[0] * (int(SEQUENCES.response_lengths.sum()) - 3)], dtype=torch.int32)
MASKED = replace(SEQUENCES, kept=Kept(COUNTS, torch.tensor([5], dtype=torch.int32)))


def test_the_reference_gets_the_sampling_mask_and_the_reward_does_not():
    arrays, header = decode(encode(*pack(MASKED)))
    mask = unpack((arrays, header)).kept
    assert (mask.counts.tolist(), mask.tokens.tolist()) == (COUNTS.tolist(), [5])
    assert unpack(pack(SEQUENCES)).kept is None
    assert "kept" not in pack(MASKED, ROWS)[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kept": torch.tensor([5, 6], dtype=torch.int32)},
        {"kept": torch.tensor([-5], dtype=torch.int32)},
        {"kept": torch.tensor([5])},
        {"kept_counts": COUNTS[1:]},
        {"kept_counts": COUNTS - 5},
    ],
)
def test_a_sampling_mask_that_does_not_fit_its_tokens_is_refused(wrong):
    arrays, header = pack(MASKED)
    with pytest.raises(
        WireError, match="a sampling mask is two int32 arrays, counts of the 13 response tokens"
    ):
        unpack((arrays | wrong, header))


FLAGS = torch.tensor([True, *[False, True] * 10][: int(SEQUENCES.after_lengths.sum())])
FLAGS[SEQUENCES.after_starts] = True
BRANCHES = ~FLAGS & (torch.arange(len(FLAGS)) > 4)
REPLIED = replace(SEQUENCES, sampled=FLAGS, branches=BRANCHES)


@pytest.mark.parametrize("rows", [None, ROWS])
def test_roles_know_which_tokens_were_sampled(rows):
    """The reference and rewards of tokens answer for these alone."""
    arrays, header = decode(encode(*pack(REPLIED, rows)))
    unpacked = unpack((arrays, header))
    assert torch.equal(unpacked.sampled, FLAGS)
    assert torch.equal(unpacked.branches, BRANCHES)
    assert torch.equal(unpacked.response_lengths, REPLIED.response_lengths)
    assert unpack(pack(SEQUENCES, rows)).sampled is None


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("sampled", FLAGS[1:], "one bool for each of the 13 tokens after the prompts"),
        ("sampled", FLAGS.int(), "one bool for each of the 13 tokens after the prompts"),
        ("sampled", torch.zeros_like(FLAGS), "must be true for a token of each sequence"),
        ("branches", FLAGS[1:], "`branches` is one bool for each of the 13 tokens"),
        ("branches", FLAGS, "a branch begins with a context token"),
    ],
)
def test_flags_that_do_not_fit_are_refused(name, wrong, message):
    arrays, header = pack(REPLIED)
    with pytest.raises(WireError, match=message):
        unpack((arrays | {name: wrong}, header))
