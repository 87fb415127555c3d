"""Rewards over HTTP: the example's own server, and services that are not what they should be."""

import asyncio
import datetime
import gzip
import json
import math
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from aiohttp import web
from tests.support import strict
from tests.support.ports import free_port

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import load
from rlhf_trainer.scoring import service
from rlhf_trainer.scoring.call_queue import CallQueue
from rlhf_trainer.scoring.samples import Failure, Sample
from rlhf_trainer.scoring.service import HttpService, secret_headers
from rlhf_trainer.transport.replies import retry_after

EXAMPLE = Path(__file__).parents[4] / "examples" / "rewards"
SAMPLES = [
    Sample("2 + 3 =", " 5", {"answer": "5"}),
    Sample("2 + 4 =", "7", {"answer": "6"}),
    Sample("7 + 1 =", "8", {}),
]


def score_samples(
    url: str, *, timeout: float = 20.0, retries: int = 0, samples=SAMPLES, concurrency: int = 1, **more
):
    scorer = HttpService(url, concurrency=concurrency, timeout=timeout, **more)
    return asyncio.run(CallQueue(scorer, retries=retries, seconds=60.0).score(samples))[0]


@pytest.fixture
def example():
    """The address of examples/rewards/server.py, running."""
    port = free_port()
    process = subprocess.Popen([sys.executable, EXAMPLE / "server.py", "--port", str(port)])
    try:
        until = time.monotonic() + 240
        while True:
            with socket.socket() as there:
                if there.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/score"
    finally:
        process.kill()
        process.wait()


def test_the_examples_server_scores_as_it_says(example):
    missing = Failure("the row has no answer to compare with")
    assert score_samples(example) == [1.0, 0.0, missing]
    assert score_samples(example, concurrency=2, samples=SAMPLES * 10) == [1.0, 0.0, missing] * 10


def test_the_messages_of_the_docs_are_the_services(example):
    page = (EXAMPLE.parents[1] / "docs" / "guides" / "rewards.md").read_text()
    request, reply = re.findall(r"^```json\n(.*?)^```", page, flags=re.S | re.M)
    posted = urllib.request.Request(example, request.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(posted, timeout=20) as answer:
        assert service._results(answer.read(), SAMPLES[:1]) == [1.0]
    assert service._results(reply.encode(), SAMPLES[:1]) == [0.5]


def serving(handle, work):
    """Runs `work(url)` while `handle` serves; returns its result and the requests' bodies."""
    bodies = []

    async def handler(request):
        bodies.append(await request.json())
        return await handle(request, len(bodies))

    async def main():
        app = web.Application()
        app.add_routes([web.post("/score", handler)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/score"
        try:
            return await asyncio.to_thread(work, url)
        finally:
            await runner.cleanup()

    return asyncio.run(main()), bodies


def good(scores=(1.0, 0.5, 0.0)):
    return web.json_response({"results": [{"score": score} for score in scores]})


def test_tokens_have_scores_where_they_are_asked_for():
    """One number for each token, or one in all; other counts are failures of their response alone."""
    tokens = (["1", "2"], ["3"], ["4", "5", ""], ["6"])
    samples = [Sample("p", "".join(texts), {}, texts) for texts in tokens]
    results = [
        {"token_scores": [0.5, 1]},
        {"score": 2},
        {"token_scores": [1, 2]},
        {"score": 1, "token_scores": [1]},
    ]

    async def handle(_request, _number):
        return web.json_response({"results": results})

    scores, bodies = serving(handle, lambda url: score_samples(url, samples=samples))
    assert scores[:2] == [[0.5, 1.0], 2.0]
    assert scores[2:] == [
        Failure("2 token_scores for a response of 3 tokens"),
        Failure("both score and token_scores"),
    ]
    assert bodies[0]["responses"][0] == {"prompt": "p", "response": "12", "row": {}, "tokens": ["1", "2"]}
    whole, _ = serving(handle, lambda url: score_samples(url, samples=[*SAMPLES, SAMPLES[0]]))
    assert whole[0] == Failure("token_scores, which need spec.reward.fineGrained: true")


def test_a_row_is_posted_as_json_for_every_server():
    """A column of Parquet may hold NaN."""
    posted = []

    async def handle(request, _number):
        posted.append(strict.loads(await request.text()))
        return good([1.0])

    row = {"weight": math.nan, "limits": [-math.inf, 1.5]}
    serving(handle, lambda url: score_samples(url, samples=[Sample("p", "r", row)]))
    assert posted[0]["responses"][0]["row"] == {"weight": None, "limits": [None, 1.5]}


def test_what_failed_is_posted_again_alone():
    async def handle(_request, number):
        if number == 1:
            return web.json_response({"results": [{"score": 1}, {"error": "busy"}, {"score": 0}]})
        return good([0.25])

    scores, bodies = serving(handle, lambda url: score_samples(url, retries=1))
    assert scores == [1.0, 0.25, 0.0]
    assert bodies[1] == {"responses": [{"prompt": "2 + 4 =", "response": "7", "row": {"answer": "6"}}]}, (
        "the documented message"
    )


def test_a_service_that_comes_back_within_the_retries_has_cost_nothing():
    async def handle(_request, number):
        return good() if number == 3 else web.Response(status=503, text="loading the judge")

    assert serving(handle, lambda url: score_samples(url, retries=2))[0] == [1.0, 0.5, 0.0]
    failures, _ = serving(handle, lambda url: score_samples(url, retries=1))
    assert all("HTTP 503: loading the judge" in failure.reason for failure in failures)


def busy(status, header):
    """A handler that asks once to be called later; and the times of all calls."""
    times = []

    async def handle(_request, number):
        times.append(time.monotonic())
        reply = web.Response(status=status, text="slow down", headers={"Retry-After": header})
        return reply if number == 1 else good()

    return handle, times


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_says_when_it_may_be_called_again_is_not_called_before(status):
    handle, times = busy(status, "2")
    assert serving(handle, lambda url: score_samples(url, retries=1))[0] == [1.0, 0.5, 0.0]
    assert times[1] - times[0] >= 2.0, "the backoff alone is half a second"


def test_a_service_that_is_busy_for_longer_than_there_is_time_is_not_called_again():
    """Not by the next batch either, until then; and the reason is that of the service."""
    handle, times = busy(429, "3600")

    def twice(url):
        scorer = HttpService(url, concurrency=1, timeout=20.0)
        return [asyncio.run(CallQueue(scorer, retries=2, seconds=60.0).score(SAMPLES))[0] for _ in range(2)]

    for failures in serving(handle, twice)[0]:
        assert all(
            "HTTP 429: slow down (Retry-After: 3600 s)" in failure.reason and failure.wait > 60
            for failure in failures
        )
    assert len(times) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        ("999999999", 3600.0),
        ("Fri, 26 Nov 2027 12:00:00 GMT", 3600.0),
        ("Thu, 26 Nov 2026 12:00:30 GMT", 30.0),
        ("Thu, 26 Nov 2026 12:00:30 -0000", 30.0),
        ("Thu, 26 Nov 2026 11:00:00 GMT", 0.0),
        *((text, 0.0) for text in ("", "soon", "-5", "1.5", "9" * 400, "Thu, 99 Nov 2026 12:00:30 GMT")),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    noon = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC).timestamp()
    assert retry_after(header, noon) == seconds


def body(content: bytes, **headers: str):
    return lambda: web.Response(body=content, headers=headers)


RESULTS = json.dumps({"results": [{"score": 1.0}] * 3}).encode()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda: web.Response(status=302, headers={"Location": "/elsewhere"}), "HTTP 302"),
        (body(gzip.compress(b"0" * (1 << 24)), **{"Content-Encoding": "gzip"}), "compressed with 'gzip'"),
        (body(b"[" * (1 << 20)), "the reply is longer than 22528 bytes"),
        (body(b"<html>"), "the reply is not as documented"),
        (body(b'{"results": [{"score": NaN}, {"score": 1}, {"score": 1}]}'), "results.0.score"),
        (body(b'{"results": [{"score": 1e999}, {"score": 1}, {"score": 1}]}'), "results.0.score"),
        (body(b'{"results": [{"score": 1e39}, {"score": 1}, {"score": 1}]}'), "results.0.score"),
        (body(b'{"results": [{"score": "1"}, {"score": 1}, {"score": 1}]}'), "results.0.score"),
        (body(b'{"results": [{"score": true}, {"score": 1}, {"score": 1}]}'), "results.0.score"),
        (body(b'{"results": [{"score": 1}]}'), "1 results for 3 responses"),
        (body(b'{"scores": [1, 1, 1]}'), "results: Field required"),
    ],
)
def test_a_reply_that_is_none_is_a_failure_and_never_a_score(reply, reason):
    async def handle(_request, _number):
        return reply()

    failures, _ = serving(handle, score_samples)
    assert [type(failure) for failure in failures] == [Failure] * 3
    assert reason in failures[0].reason
    assert len(failures[0].reason) <= 500


def test_a_reply_of_the_documented_kind_may_say_more():
    async def handle(_request, _number):
        results = [{"score": 1.0, "why": "nice"}, {"error": "e" * 9000, "score": None}, {}]
        return web.json_response({"results": results, "model": "judge-2"})

    first, second, third = serving(handle, score_samples)[0]
    assert first == 1.0
    assert second.reason.startswith("eee")
    assert len(second.reason) == 500
    assert third.reason == "neither a score nor an error"


def test_a_reply_that_drips_has_its_deadline_as_a_whole():
    async def handle(request, _number):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(600):
            await response.write(b" ")
            await asyncio.sleep(0.1)
        return response

    failures, _ = serving(handle, lambda url: score_samples(url, timeout=1.0))
    assert all("no reply within 1 s" in failure.reason for failure in failures)


def test_a_service_that_is_not_there_is_a_failure():
    failures = score_samples("http://127.0.0.1:1/score")
    assert all("127.0.0.1" in failure.reason for failure in failures)


def test_the_examples_manifest_is_valid():
    spec = load(EXAMPLE / "service.yaml").spec
    assert [function.metric for function in spec.reward.functions] == ["correct", "brevity"]


TOKEN = 'Bearer s3"cret'


def test_a_credential_that_is_part_of_a_score_leaves_scores_alone():
    """A short credential, such as a tenant's number, may occur in scores, where nobody reads it as a secret."""

    async def handle(_request, _number):
        return web.json_response(
            {"results": [{"score": 1.5}, {"score": 0.5}, {"error": "tenant 5 is unknown"}]}
        )

    scores, _ = serving(handle, lambda url: score_samples(url, secrets={"X-Tenant": "5"}))
    assert scores == [1.5, 0.5, Failure("tenant *** is unknown")]


def test_credentials_go_into_the_header_and_into_no_log():
    headers = []

    async def handle(request, number):
        headers.append(request.headers.get("X-Judge"))
        if number == 1:
            return web.Response(status=401, text=f"{'x' * 190} unknown token {TOKEN}")
        if number == 2:
            return web.json_response({"results": [{"error": f"no credit left for {TOKEN[7:]}"}] * 3})
        return good()

    def work(url):
        secrets = {"X-Judge": TOKEN}
        return [score_samples(url, secrets=secrets) for _ in range(3)]

    (refused, empty, scores), _ = serving(handle, work)
    assert headers == [TOKEN] * 3
    assert scores == [1.0, 0.5, 0.0]
    assert "HTTP 401" in refused[0].reason
    assert empty[0].reason == "no credit left for ***"
    assert "s3" not in "".join(failure.reason for failure in (*refused, *empty))


def test_credentials_come_from_the_environment_of_the_role():
    names = {"Authorization": "A", "X-Judge": "B"}
    assert secret_headers("f", names, {"A": "Bearer a\n", "B": "b"}) == {
        "Authorization": "Bearer a",
        "X-Judge": "b",
    }
    with pytest.raises(InvalidJob) as caught:
        secret_headers("f", names, {"B": "b\x00secret"})
    missing, wrong = map(str, caught.value.problems)
    assert missing.startswith("f.Authorization: the reward role's environment has no A;")
    assert wrong.startswith("f.X-Judge: the value of B cannot be a header")
    assert "secret" not in wrong
