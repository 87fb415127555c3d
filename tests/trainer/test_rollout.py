"""Answers from generators: what is read from vLLM's reply, and prompts that outlive the generator they were sent to."""

import json
import threading
from collections import Counter

import pytest
from aiohttp import web

from rlhf_api.roles import Role
from rlhf_api.run import Member
from rlhf_api.spec import Sampling
from rlhf_trainer.http import Background, HttpError
from rlhf_trainer.records import Prompt
from rlhf_trainer.rollout.vllm import VllmClient, request_seed, rollout

PROMPTS = [Prompt(f"0/{i}", (i, i + 1), {}) for i in range(12)]
CHOICE = {
    "index": 0,
    "token_ids": [5, 6],
    "logprobs": {"token_logprobs": [-0.5, -1.5]},
    "finish_reason": "stop",
}


def test_a_choice_becomes_a_rollout():
    made = rollout(PROMPTS[0], CHOICE, version=3)
    assert (made.tokens, made.logprobs, made.versions, made.finished) == ((5, 6), (-0.5, -1.5), (3, 3), True)
    assert not rollout(PROMPTS[0], CHOICE | {"finish_reason": "length"}, version=3).finished


@pytest.mark.parametrize(
    "broken",
    [
        {"token_ids": None},
        {"token_ids": []},
        {"logprobs": None},
        {"logprobs": {"token_logprobs": [-0.5]}},
    ],
)
def test_a_choice_without_what_training_needs_is_an_error(broken):
    with pytest.raises(ValueError, match="answered prompt 0/0 without tokens or their log-probabilities"):
        rollout(PROMPTS[0], CHOICE | broken, version=0)


def test_request_seeds_are_stable_and_spread():
    seeds = {
        request_seed(seed, f"{epoch}/{row}") for seed in (0, 1) for epoch in (0, 1) for row in range(500)
    }
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(1, "0/7") == 137764664, "the same on every machine"


class Generator:
    """A server that speaks vLLM's completions; `fails` says from which request on it fails, and how."""

    def __init__(self, http: Background, name: str, *, fails: int | None = None, status: int = 500) -> None:
        self.asked: list[dict] = []
        self.highest = self._now = 0
        self._fails, self._status, self._http = fails, status, http
        self._lock = threading.Lock()
        self._runner = http.run(self._start())
        port = self._runner.addresses[0][1]
        self.member = Member(role=Role.GENERATOR, name=name, uid=name, address=f"http://127.0.0.1:{port}")

    async def _start(self) -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.post("/v1/completions", self._answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self._now += 1
        self.highest = max(self.highest, self._now)
        try:
            if self._fails is not None and len(self.asked) > self._fails:
                if self._status == 0:  # dies in the middle of an answer
                    request.transport.close()
                    return web.Response()
                return web.json_response({"error": "no"}, status=self._status)
            first = body["prompt"][0]
            choices = [CHOICE | {"index": k, "token_ids": [first, k]} for k in range(body["n"])]
            return web.Response(text=json.dumps({"choices": choices[::-1]}), content_type="application/json")
        finally:
            self._now -= 1

    def stop(self) -> None:
        self._http.run(self._runner.cleanup())


@pytest.fixture
def http():
    with Background("token") as background:
        yield background


def client(http: Background, *, concurrent: int = 2, answers: int = 2) -> VllmClient:
    sampling = Sampling(answersPerPrompt=answers, temperature=0.7, topK=9, maxNewTokens=5)
    return VllmClient(
        http, model="job", sampling=sampling, seed=1, eos=99, concurrent=concurrent, timeout=10.0
    )


def test_answers_come_in_the_order_of_the_prompts(http):
    servers = [Generator(http, "a"), Generator(http, "b")]
    done, left, failed = client(http).generate(PROMPTS, [s.member for s in servers], version=6)
    assert (left, failed) == ([], [])
    assert [(r.prompt.id, r.tokens) for r in done] == [
        (p.id, (p.tokens[0], k)) for p in PROMPTS for k in range(2)
    ]
    assert all(r.versions == (6, 6) for r in done)
    assert all(s.asked for s in servers), "both worked"
    assert all(s.highest <= 2 for s in servers), "no more at once than asked for"
    body = servers[0].asked[0]
    assert (body["n"], body["temperature"], body["top_k"], body["max_tokens"]) == (2, 0.7, 9, 5)
    assert (body["model"], body["stop_token_ids"], body["logprobs"]) == ("job", [99], 0)
    seeds = {tuple(b["prompt"]): b["seed"] for s in servers for b in s.asked}
    assert seeds == {p.tokens: request_seed(1, p.id) for p in PROMPTS}, "whoever answers"


@pytest.mark.parametrize("status", [0, 500, 503])
def test_prompts_of_a_generator_that_fails_go_to_the_other(http, status):
    bad, good = Generator(http, "bad", fails=2, status=status), Generator(http, "good")
    done, left, failed = client(http).generate(PROMPTS, [bad.member, good.member], version=0)
    assert [m.name for m in failed] == ["bad"]
    assert left == []
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}, "each once, with both answers"


def test_prompts_wait_when_no_generator_is_left(http):
    bad, gone = Generator(http, "bad", fails=3), Generator(http, "gone")
    gone.stop()
    asker = client(http, concurrent=1, answers=1)
    done, left, failed = asker.generate(PROMPTS, [bad.member, gone.member], version=0)
    assert {m.name for m in failed} == {"bad", "gone"}
    assert len(done) == 3
    assert [p.id for p in left] == [p.id for p in PROMPTS if p.id not in {r.prompt.id for r in done}]

    again = Generator(http, "again")
    rest, left, failed = asker.generate(left, [again.member], version=0)
    assert (len(rest), left, failed) == (9, [], [])
    assert asker.generate(PROMPTS, [], version=0) == ([], PROMPTS, [])


def test_a_request_that_is_refused_is_not_tried_elsewhere(http):
    """Every generator would refuse it, and each would be taken for dead."""
    refuses = Generator(http, "a", fails=0, status=400)
    with pytest.raises(HttpError, match="HTTP 400"):
        client(http).generate(PROMPTS, [refuses.member], version=0)
    assert len(refuses.asked) <= 2, "what was in flight, and no more"
