"""The trainer's questions to reward and reference over real HTTP: spread, in order, and through failures."""

import threading
import urllib.error
import urllib.request

import pytest
import torch
from aiohttp import web

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.roles import Role
from rlhf_api.run import Member, Membership
from rlhf_trainer.comms.control import Control
from rlhf_trainer.comms.http import Background
from rlhf_trainer.comms.roster import Roster, Stopped, Unavailable
from rlhf_trainer.comms.wire import decode, encode
from rlhf_trainer.records import Sequences
from rlhf_trainer.scoring import client as module
from rlhf_trainer.scoring.client import Scorer
from rlhf_trainer.scoring.messages import SCORE_ROUTE, pack, rows_of, unpack
from rlhf_trainer.scoring.server import application

TOKEN = "token-of-tests"
SEQUENCES = Sequences.pack([((i,), (i + 1,) * (1 + i % 3)) for i in range(7)])
ROWS = [{"score": i * 1.5} for i in range(7)]
FIELD = "spec.reward.functions[0].function"


class Trainer:
    """The trainer's side, with the members that a host has told it of."""

    def __init__(self, http: Background) -> None:
        self.control, self.http = Control(total_steps=1), http
        self.roster = Roster(self.control, http)

    def know(self, *members: Member) -> None:
        self.control._members = Membership(members=members).members
        self.control.membership_changed.set()

    def scorer(self, patience: float = 20.0) -> Scorer:
        roster = self.roster
        return Scorer(
            Role.REWARD, SCORE_ROUTE, http=self.http, roster=roster, timeout=20.0, patience=patience
        )


class Server:
    """A reward server that returns each row's own score, or does what `answer` does."""

    def __init__(self, http: Background, name: str, answer=None) -> None:
        self.batches: list[int] = []
        self._http = http

        def scores(message):
            sequences, rows = unpack(message), rows_of(message)
            self.batches.append(len(sequences))
            return {"scores": torch.tensor([row["score"] for row in rows])}, {}

        self._runner = web.AppRunner(application(SCORE_ROUTE, answer or scores, TOKEN))
        self.address = f"http://127.0.0.1:{http.run(self._start())}"
        self.member = Member(role=Role.REWARD, name=name, uid=self.address, address=self.address)

    async def _start(self) -> int:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self._runner.addresses[0][1]

    def die(self) -> None:
        self._http.run(self._runner.cleanup())


@pytest.fixture
def trainer(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.05)
    with Background(TOKEN) as http:
        yield Trainer(http)


def expected() -> list[float]:
    return [row["score"] for row in ROWS]


def test_a_batch_is_spread_over_the_members_and_comes_back_in_order(trainer):
    servers = [Server(trainer.http, f"reward-{i}") for i in range(2)]
    trainer.know(*(server.member for server in servers))
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == expected()
    assert sorted(batch for server in servers for batch in server.batches) == [3, 4]
    one = SEQUENCES.select(torch.tensor([5]))
    assert trainer.scorer().ask(one, "scores", ROWS[5:6]).tolist() == [7.5], "fewer rows than members"


def test_a_member_that_died_is_not_asked(trainer):
    servers = [Server(trainer.http, f"reward-{i}") for i in range(2)]
    trainer.know(*(server.member for server in servers))
    servers[0].die()
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == expected()
    assert servers[1].batches == [7]


def test_asking_outlives_all_members_until_one_is_back_elsewhere(trainer):
    first = Server(trainer.http, "reward-0")
    trainer.know(first.member)
    first.die()
    found: list[torch.Tensor] = []
    asking = threading.Thread(target=lambda: found.append(trainer.scorer().ask(SEQUENCES, "scores", ROWS)))
    asking.start()
    second = Server(trainer.http, "reward-0")
    trainer.know(second.member)
    asking.join(timeout=20)
    assert [scores.tolist() for scores in found] == [expected()]


def test_a_member_that_dies_over_a_batch_costs_another_try(trainer):
    calls = []

    def breaks_once(message):
        calls.append(len(unpack(message)))
        if len(calls) == 1:
            raise MemoryError("too much at once")
        return {"scores": torch.zeros(calls[-1])}, {}

    trainer.know(Server(trainer.http, "reward-0", breaks_once).member)
    assert trainer.scorer().ask(SEQUENCES, "scores", ROWS).tolist() == [0.0] * 7
    assert calls == [7, 7]


def test_a_member_that_is_up_but_always_fails_is_not_asked_for_ever(trainer):
    def breaks(_message):
        raise MemoryError("too much at once")

    trainer.know(Server(trainer.http, "reward-0", breaks).member)
    with pytest.raises(RuntimeError, match="the reward failed 3 times on one batch: MemoryError: too much"):
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)


def test_the_jobs_own_mistake_names_its_field(trainer):
    def mistaken(_message):
        raise InvalidJob([Problem(FIELD, "the function raised KeyError: 'a: b'")])

    trainer.know(Server(trainer.http, "reward-0", mistaken).member)
    with pytest.raises(InvalidJob) as caught:
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)
    assert caught.value.problems == (Problem(FIELD, "the function raised KeyError: 'a: b'"),)


def test_nobody_answers_in_time(trainer):
    gone = Server(trainer.http, "reward-0")
    gone.die()
    trainer.know(gone.member)
    with pytest.raises(Unavailable, match=rf"no reward answered within 0 s \(reward-0 at {gone.address}\)"):
        trainer.scorer(patience=0.3).ask(SEQUENCES, "scores", ROWS)
    trainer.know()
    with pytest.raises(Unavailable, match="none was announced"):
        trainer.scorer(patience=0.1).ask(SEQUENCES, "scores", ROWS)


def test_a_request_to_stop_ends_the_wait(trainer):
    trainer.control.stop_requested.set()
    with pytest.raises(Stopped, match="while waiting for the reward"):
        trainer.scorer().ask(SEQUENCES, "scores", ROWS)


def post(server: Server, body: bytes, token: str = TOKEN) -> tuple[int, str]:
    request = urllib.request.Request(server.address + SCORE_ROUTE, data=body, method="POST")
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
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
