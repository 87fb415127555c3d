"""Responses that cannot be scored: left out where they are few, a pause where they are many, and never a zero."""

import asyncio
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from aiohttp import web
from tests.support.kubernetes.kube import eventually
from tests.support.ports import free_port

from rlhf_api.contract.proof import Prover
from rlhf_api.contract.run import Member, Membership
from rlhf_api.roles import Role
from rlhf_trainer.dispatch.control import Control
from rlhf_trainer.dispatch.roster import Roster, Stopped
from rlhf_trainer.rollout.remote import _judged
from rlhf_trainer.scoring import reward_client as module
from rlhf_trainer.scoring.client import Scorer
from rlhf_trainer.scoring.joined import JoiningClient
from rlhf_trainer.scoring.messages import SCORE_ROUTE, Part, rows_of, unpack
from rlhf_trainer.scoring.questions import Question, QuestionClient
from rlhf_trainer.scoring.reward_client import RewardClient, Unscored
from rlhf_trainer.scoring.server import application
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.transport.http import HttpClient

TOKEN = "token-of-tests"
SEQUENCES = Sequences.pack([((i,), (i + 1,) * (1 + i % 3)) for i in range(8)])
ROWS = [{"i": i} for i in range(8)]
LENGTH, CALLS = 8000, 64
PART = {"part": Part.FUNCTIONS}


class Job:
    """A reward server over HTTP whose `failing` rows have no score, and the trainer's side of it."""

    def __init__(self, http: HttpClient) -> None:
        self.failing: dict[int, str] = {}
        self.asked: list[list[int]] = []
        self.told: list[str] = []
        self.tokens = False
        self.score: Callable[[int], float] = float
        self.first: Callable[[list[int]], object] = lambda _rows: None
        """Called for each message before its scores are made."""
        self.control = Control(total_steps=1)
        self._http, self._roster = http, Roster(self.control, http)
        self._threads = ThreadPoolExecutor(max_workers=CALLS)
        prover = Prover(TOKEN, "127.0.0.1", free_port())
        runner = web.AppRunner(application(SCORE_ROUTE, self._scores, prover, waits=self._waits))
        http.run(runner.setup())
        http.run(web.TCPSite(runner, "127.0.0.1", prover.port).start())
        address = f"http://127.0.0.1:{prover.port}"
        member = Member(role=Role.REWARD, name="reward-0", uid="0", address=address)
        self.control._membership = Membership(members=(member,))

    def _waits(self, message):
        if message[1]["part"] == Part.MODEL:
            return None
        return asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._scores(message))

    def _scores(self, message):
        sequences, rows = unpack(message), [row["i"] for row in rows_of(message)]
        self.asked.append(sorted(rows))
        self.first(rows)
        reasons = {place: self.failing[i] for place, i in enumerate(rows) if i in self.failing}
        scores = torch.tensor(
            [torch.nan if place in reasons else self.score(i) for place, i in enumerate(rows)]
        ).double()
        arrays = {"scores": scores}
        if self.tokens:
            arrays = {"token_scores": torch.repeat_interleave(scores, sequences.response_lengths)}
        each = [None if place in reasons else float(scores[place]) for place in range(len(rows))]
        part = {"total": float(scores.nansum()), "failed": len(reasons), "seconds": 0.5, "scores": each}
        return arrays, {"failures": reasons, "parts": {message[1]["part"]: part}}

    def client(
        self,
        share: float = 0.25,
        patience: float = 600.0,
        array: str = "scores",
        parts: Collection[Part] = (Part.FUNCTIONS,),
        most_joined: int = 1,
    ) -> RewardClient:
        def scorer() -> Scorer:
            return Scorer(
                Role.REWARD,
                SCORE_ROUTE,
                http=self._http,
                roster=self._roster,
                chunk_tokens=1000,
                timeout=120.0,
                patience=120.0,
                at_once=CALLS,
                most_joined=most_joined,
            )

        return RewardClient(
            array,
            functions=(Part.FUNCTIONS, scorer()) if Part.FUNCTIONS in parts else None,
            model=(Part.MODEL, scorer()) if Part.MODEL in parts else None,
            max_failed_share=share,
            patience=patience,
            stopping=lambda: self._roster.stopping,
            report=self.told.append,
        )


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    with HttpClient(TOKEN) as http:
        yield Job(http)


@pytest.fixture
def full_messages(monkeypatch):
    """Messages are sent when they are full, however long that takes, and none is larger to a quick member."""
    monkeypatch.setattr("rlhf_trainer.scoring.joined.WINDOW_SECONDS", 3600.0)
    monkeypatch.setattr("rlhf_trainer.scoring.joined.QUICK_SECONDS", 0.0)


def test_a_few_without_a_score_are_named_and_counted(job):
    job.failing = {2: "judge: no answer", 5: "judge: ended by SIGSEGV"}
    client = job.client()
    scores = client.ask(SEQUENCES, ROWS)
    assert scores.isnan().nonzero().flatten().tolist() == [2, 5]
    assert scores[[0, 1, 3, 4, 6, 7]].tolist() == [0, 1, 3, 4, 6, 7]
    assert client.failures == job.failing
    (each,) = client.scores.values()
    torch.testing.assert_close(each.double(), scores, equal_nan=True)
    assert (sorted(job.asked), job.told) == ([[i] for i in range(8)], []), "each alone"
    expected = {
        "reward_functions_mean": 21 / 6,
        "reward_functions_failed": 2,
        "reward_functions_seconds": 4.0,
    }
    assert client.take_metrics() == expected | {"responses_dropped": 2, "responses_dropped_share": 0.25}
    assert client.take_metrics() == {}


@pytest.mark.usefixtures("full_messages")
@pytest.mark.parametrize("name", ["scores", "token_scores"])
def test_responses_that_end_together_are_one_message_and_get_what_each_would_get_alone(job, name):
    job.failing, job.tokens, results = {2: "judge: no answer"}, name == "token_scores", []
    sampled = torch.arange(int(SEQUENCES.after_lengths.sum())) != int(SEQUENCES.after_starts[2])
    for most_joined in (1, 4):
        client = job.client(array=name, most_joined=most_joined)
        scores = client.ask(replace(SEQUENCES, sampled=sampled), ROWS)
        results.append((scores.nan_to_num(-1).tolist(), client.failures, client.take_metrics()))
        of_each = client.scores[Part.FUNCTIONS].nan_to_num(-1).tolist()
        assert of_each == [0, 1, -1, 3, 4, 5, 6, 7]
    assert results[0][:2] == results[1][:2]
    seconds = "reward_functions_seconds"
    assert (results[0][2].pop(seconds), results[1][2].pop(seconds)) == (8 * 0.5, 2 * 0.5)
    assert results[0][2] == results[1][2]
    assert sorted(job.asked[8:]) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.usefixtures("full_messages")
@pytest.mark.parametrize(("quick", "size"), [(0.0, 2), (120.0, 8)])
def test_a_full_message_is_sent_at_once_and_larger_to_a_member_that_replies_quickly(
    job, monkeypatch, quick, size
):
    monkeypatch.setattr("rlhf_trainer.scoring.joined.QUICK_SECONDS", quick)
    monkeypatch.setattr("rlhf_trainer.scoring.client.MOST_TO_QUICK", 8)
    client = job.client(most_joined=2)
    client.ask(SEQUENCES.select(torch.tensor([0, 1])), ROWS[:2])
    assert client.ask(SEQUENCES, ROWS).tolist() == list(range(8))
    assert [*map(len, job.asked)] == [2, *[size] * (8 // size)]


@pytest.mark.usefixtures("full_messages")
def test_a_message_that_fails_is_sent_again_as_one_for_each_response(job, monkeypatch):
    monkeypatch.setattr("rlhf_trainer.scoring.questions.PAUSE_SECONDS", 0.01)

    def crash(rows: list[int]) -> None:
        if len(rows) > 1:
            raise RuntimeError("too many")

    job.first = crash
    assert job.client(most_joined=8).ask(SEQUENCES, ROWS).tolist() == list(range(8))
    assert job.asked[0] == list(range(8))
    assert sorted(job.asked[1:]) == [[i] for i in range(8)]


def test_a_response_that_is_given_up_leaves_the_others_of_its_message_their_reply(job):
    """Another member may have its reply by then."""
    gate, first = threading.Event(), Question(SEQUENCES.select(torch.tensor([0])), "scores", ROWS[:1], PART)
    second = Question(SEQUENCES.select(torch.tensor([1])), "scores", ROWS[1:2], PART)
    job.first = lambda _rows: gate.wait(120)
    (member,) = job.control._membership.members

    async def ask() -> None:
        client = JoiningClient(QuestionClient(job._http, SCORE_ROUTE), 8, 8)
        asking = [asyncio.create_task(client.ask(member, each, lambda: None)) for each in (first, second)]
        while not job.asked:
            await asyncio.sleep(0.01)
        asking[0].cancel()
        await asyncio.wait(asking[:1])
        gate.set()
        await asking[1]
        assert asking[0].cancelled()

    job._http.run(ask())
    assert not first.reply.done()
    assert second.reply.result()[0].tolist() == [1]


def test_the_share_without_a_score_is_of_all_responses_of_the_step(job):
    """Responses that dynamic sampling filters out afterwards count too."""
    job.failing = {2: "judge: no answer", 5: "judge: no answer"}
    client = job.client()
    client.ask(SEQUENCES, ROWS)
    job.failing = {}
    client.ask(SEQUENCES, ROWS)
    assert client.take_metrics()["responses_dropped_share"] == 2 / 16


def test_a_batch_of_one_prompt_that_cannot_be_scored_does_not_end_a_step_whose_others_were(job):
    """The last rounds of dynamic sampling score such small batches."""
    job.failing = {0: "judge: ended by SIGSEGV"}
    client = job.client()
    client.ask(SEQUENCES, ROWS)
    one = SEQUENCES.select(torch.tensor([0]))
    assert client.ask(one, ROWS[:1]).isnan().all()
    assert client.take_metrics()["responses_dropped"] == 2
    assert job.told == []


def test_scores_of_tokens_are_missing_for_all_tokens_of_a_response(job):
    job.failing, job.tokens = {2: "judge: no answer"}, True
    scores = job.client(array="token_scores").ask(SEQUENCES, ROWS)
    missing = SEQUENCES.response_index(torch.tensor([2])).tolist()
    assert scores.isnan().nonzero().flatten().tolist() == missing


def test_more_than_the_share_pauses_the_job_until_they_are_scored(job):
    """Responses that have a score are not scored again."""
    job.failing = dict.fromkeys((1, 2, 5, 7), "judge: HTTP 503")
    results: list[torch.Tensor] = []
    client = job.client()
    asking = threading.Thread(target=lambda: results.append(client.ask(SEQUENCES, ROWS)))
    asking.start()
    until = time.monotonic() + 120
    while not job.told and time.monotonic() < until:
        time.sleep(0.01)
    assert job.told[0] == "paused: 4 of 8 responses have no score (judge: HTTP 503)"
    job.failing = {5: "judge: HTTP 503"}
    asking.join(timeout=120)
    (scores,) = results
    assert scores.isnan().nonzero().flatten().tolist() == [5]
    assert scores[[1, 2, 7]].tolist() == [1, 2, 7]
    counts = Counter(row for request in job.asked for row in request)
    assert {row for row, count in counts.items() if count == 1} == {0, 3, 4, 6}
    assert job.told[-1] == "scoring"
    assert client.take_metrics()["responses_dropped"] == 1


def test_a_pause_without_progress_ends_the_job_with_the_reason(job):
    job.failing = dict.fromkeys(range(8), "judge: HTTP 503")
    words = r"8 of 8 responses have no score \(judge: HTTP 503\); spec.reward.maxFailedShare 0.5 allows fewer"
    with pytest.raises(Unscored, match=words):
        job.client(share=0.5, patience=0.3).ask(SEQUENCES, ROWS)


def test_failures_of_the_judge_are_counted_against_one_evaluation_alone(job):
    """However many responses it has scored before: the mean of what is left would rank the checkpoint. The job is not
    paused for it."""
    judge = job.client(patience=0)
    for _ in range(20):
        _judged(judge, SEQUENCES, ROWS)
    job.failing = dict.fromkeys(range(5), "judge: HTTP 503")
    with pytest.raises(
        Unscored, match=r"^5 of 8 responses have no score \(judge: HTTP 503\); .* allows fewer$"
    ):
        _judged(judge, SEQUENCES, ROWS)
    assert job.told == []
    job.failing = {}
    assert not _judged(judge, SEQUENCES, ROWS).isnan().any()


def test_a_paused_job_can_be_stopped(job):
    job.failing = dict.fromkeys(range(8), "judge: HTTP 503")
    job.control.stop_requested.set()
    with pytest.raises(Stopped, match="while the job was paused"):
        job.client().ask(SEQUENCES, ROWS)


@pytest.mark.parametrize("header", [{}, {"failures": {"9": "of nobody"}, "parts": {}}, {"failures": 1}])
def test_a_reply_without_a_report_is_an_error(job, header, monkeypatch):
    monkeypatch.setattr(Job, "_scores", lambda *_: ({"scores": torch.zeros(1).double()}, header))
    with pytest.raises(RuntimeError, match="the reward's reply"):
        Job(job._http).client().ask(SEQUENCES, ROWS)


def test_a_response_is_scored_from_its_end_on_and_once(job):
    """While others are generated. A batch that has two equal ones has both scores; another may have context tokens."""
    client = job.client()
    sampled = torch.arange(int(SEQUENCES.after_lengths.sum())) != int(SEQUENCES.after_starts[2])
    for i in (5, 3, 5):
        prompt, response = SEQUENCES.row(i)[:1].tolist(), SEQUENCES.row(i)[1:].tolist()
        client.begin(Sequences.pack([(prompt, array("i", response))]), ROWS[i])
    eventually(lambda: len(job.asked) == 3, "scores of what has ended", 120)
    order = torch.tensor([*range(8), 5])
    batch = replace(SEQUENCES, sampled=sampled).select(order)
    scores = client.ask(batch, [ROWS[i] for i in order.tolist()])
    assert scores.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 5]
    assert sorted(row for request in job.asked for row in request) == sorted(order.tolist()), (
        "no response is scored again"
    )
    assert client.ask(SEQUENCES, ROWS).tolist() == list(range(8)), "nothing is left of an earlier batch"
    assert len(job.asked) == 9 + 8


def test_scores_and_metrics_do_not_depend_on_who_replies_first(job):
    """Sums of floats do depend on their order."""
    values, gates = [1e8, 1.0, -1e8, 0.1, 3.3, 1e-3, 7.0, 0.7], {i: threading.Event() for i in range(8)}
    job.score, job.first = values.__getitem__, lambda rows: gates[rows[0]].wait(120)
    results = []

    def ask() -> None:
        client = job.client()
        results.append((client.ask(SEQUENCES, ROWS).tolist(), client.take_metrics()))

    for order in (range(8), reversed(range(8))):
        asking = threading.Thread(target=ask)
        asking.start()
        for i in order:
            gates[i].set()
        asking.join(120)
        for gate in gates.values():
            gate.clear()
    assert results[0] == results[1]
    assert results[0][0] == torch.tensor(values).double().tolist()


def test_functions_are_asked_for_each_response_and_the_model_for_micro_batches(job):
    client = job.client(parts=Part)
    scores = client.ask(SEQUENCES, ROWS)
    assert scores.tolist() == [2.0 * i for i in range(8)], "the sum of both"
    assert sorted(job.asked) == sorted([*([i] for i in range(8)), list(range(8))])
    metrics = client.take_metrics()
    assert (metrics["reward_model_mean"], metrics["reward_functions_mean"]) == (3.5, 3.5)


def test_as_many_responses_are_scored_at_once_as_the_manifest_says_however_long_they_are(job):
    """Each waits until all of them are there."""
    together = threading.Barrier(CALLS)
    job.first = lambda _rows: together.wait(120)
    sequences = Sequences.pack([((1,), (2,) * LENGTH)] * CALLS)
    assert job.client().ask(sequences, [{"i": i} for i in range(CALLS)]).tolist() == list(range(CALLS))
