"""The operator and trainers that are not to be trusted: what runs in a job's containers may answer anything."""

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from tests.support.proving import proving_by
from tests.unit.operator.cluster.world import START, T, World, new_pod, running

from rlhf_api.contract.proof import PROOF
from rlhf_api.contract.report import (
    LARGEST_COUNT,
    CheckpointStatus,
    HealthStatus,
    LedgerStatus,
    MemberStatus,
    TrainerStatus,
    last_words,
    with_last_words,
)
from rlhf_api.contract.run import CONTROL_MEMBERS, CONTROL_STATUS, CONTROL_STOP, Membership
from rlhf_operator.cluster.objects.companions import token
from rlhf_operator.cluster.observe.trainer_client import TrainerClient
from rlhf_operator.job.snapshot import Job, Pod
from rlhf_operator.supervision import role_client as control
from rlhf_operator.supervision.process_state import Ended
from rlhf_operator.supervision.role_client import ControlClient, Unreadable

REPORT = {"activity": "training", "step": 1, "totalSteps": 4}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    handler: Handler, host: str = "127.0.0.1", port: int = 0, *, has: str | None = "token"
) -> AsyncIterator[str]:
    """A server that proves that it has a token, if it has one, and answers everything else in this way; its URL."""
    app = web.Application(middlewares=[proving_by(has)] if has else [])
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, host, port, reuse_port=True).start()
    try:
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def ask(handler: Handler) -> TrainerStatus | None:
    async def main() -> TrainerStatus | None:
        async with asyncio.timeout(30), serving(handler) as url, ControlClient("token") as client:
            return await client.status(url)

    return asyncio.run(main())


def answering(body: object) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return handler


def test_an_answer_without_end_is_cut_off_at_256_kib():
    sent = []

    async def handler(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        while True:
            await stream.write(b" " * (1 << 16))
            sent.append(1 << 16)

    with pytest.raises(Unreadable, match="at most 256 KiB"):
        ask(handler)
    assert sum(sent) < 32 << 20  # what the sockets hold between the two


def test_nothing_is_decompressed():
    bomb = gzip.compress(bytes(200 << 20), 1)
    assert len(bomb) < 1 << 20
    small = gzip.compress(json.dumps(REPORT).encode())

    def packed(body: bytes) -> Handler:
        async def handler(_: web.Request) -> web.StreamResponse:
            return web.Response(body=body, headers={"Content-Encoding": "gzip"})

        return handler

    tracemalloc.start()
    try:
        for body in (bomb, small):
            with pytest.raises(Unreadable):
                ask(packed(body))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_redirect_is_not_followed():
    async def main() -> None:
        visits = []

        async def elsewhere(request: web.Request) -> web.StreamResponse:
            visits.append(request.headers.get("Authorization"))
            return web.json_response(REPORT)

        async with serving(elsewhere) as inside:

            async def handler(request: web.Request) -> web.StreamResponse:
                raise web.HTTPTemporaryRedirect(inside + request.path)

            async with serving(handler) as url, ControlClient("token") as client:
                assert await client.status(url) is None
                assert not await client.stop(url)
                assert not await client.members(url, Membership())
        assert visits == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"activity": "x" * 1000},
        {"step": 10**30},
        {"weightVersion": -1},
        {"lastCheckpoint": {"step": 1, "time": "t", "uri": "u" * 5000}},
        {"members": [{"role": "generator", "name": "g", "uid": "u", "ready": True}] * 3001},
        {"step": "one"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_would_not_fit_into_an_object_is_no_report(wrong):
    with pytest.raises(Unreadable, match=next(iter(wrong))) as caught:
        ask(answering(REPORT | wrong))
    assert len(str(caught.value)) < 500


def test_a_report_of_another_release_is_read():
    status = ask(answering(REPORT | {"ofAnotherRelease": {"a": 1}}))
    assert status is not None
    assert status.step == 1


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e300, -1.0, 0.0])
def test_an_end_that_no_calendar_has_is_none(seconds):
    world = running()
    world.trainer = TrainerStatus(activity="training", step=3, total_steps=4, seconds_per_step=seconds)
    world.step()
    assert world.status.estimated_end is None


def trainer_pod(address: str) -> Pod:
    world = World(pods={"job-trainer-0": new_pod(T, 0, 1, START)})
    world.run("job-trainer-0")
    body = world.pods["job-trainer-0"]
    body["status"]["podIP"] = address
    return Pod.of(body)


def job(uid: str) -> Job:
    body = World().job.body
    return Job.of({**body, "metadata": {**body["metadata"], "uid": uid}})


def test_nobody_waits_for_a_trainer_that_is_silent(monkeypatch):
    """It accepts the connection and never replies."""
    monkeypatch.setattr(control, "_TIMEOUT_SECONDS", 3600)

    async def main() -> None:
        paths = []

        async def silent(request: web.Request) -> web.StreamResponse:
            paths.append(request.path)
            await asyncio.Event().wait()
            raise AssertionError

        trainers = TrainerClient(b"k" * 32)
        async with (
            asyncio.timeout(20),
            serving(silent, "127.9.0.1", 8000),
            serving(answering(REPORT), "127.9.0.2", 8000, has=token(b"k" * 32, job("living"))),
        ):
            dead, living = trainer_pod("127.9.0.1"), trainer_pod("127.9.0.2")
            for i in range(100):  # more than are asked at the same time
                monkeypatch.setattr("rlhf_operator.cluster.observe.trainer_client._PATIENCE_SECONDS", 0)
                assert await trainers.read(job(f"dead-{i}"), [dead]) is None
            await trainers.stop(job("dead-0"), [dead])
            assert await trainers.push_membership(job("dead-0"), [dead], Membership())
            assert not await trainers.checkpoint(job("dead-0"), [dead])
            assert set(paths) <= {CONTROL_STATUS}
            for i in range(100):
                trainers.forget(f"dead-{i}")
            monkeypatch.setattr("rlhf_operator.cluster.observe.trainer_client._PATIENCE_SECONDS", 10)
            assert await trainers.read(job("living"), [living]) is not None
        await trainers.close()

    asyncio.run(main())


def test_a_trainer_that_answers_is_asked_and_told_what_there_is_to_say():
    async def main() -> None:
        requests = []

        async def handler(request: web.Request) -> web.StreamResponse:
            requests.append((request.method, request.path))
            return web.json_response(REPORT)

        trainers = TrainerClient(b"k" * 32)
        async with asyncio.timeout(20), serving(handler, "127.9.0.3", 8000, has=token(b"k" * 32, job("a"))):
            pods = [trainer_pod("127.9.0.3")]
            while await trainers.read(job("a"), pods) is None:
                pass
            assert await trainers.push_membership(job("a"), pods, Membership())
            assert await trainers.push_membership(job("a"), pods, Membership())  # known already
            await trainers.stop(job("a"), pods)
        await trainers.close()
        assert requests[-2:] == [("PUT", CONTROL_MEMBERS), ("POST", CONTROL_STOP)]
        assert requests.count(("PUT", CONTROL_MEMBERS)) == 1

    asyncio.run(main())


SAVED = CheckpointStatus(step=4, time="2026-01-01T00:00:00Z", uri="s3://bucket/job")


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (0, last_words(TrainerStatus(activity="", step=4, total_steps=4, last_checkpoint=SAVED)), (4, SAVED)),
        (
            79,
            last_words(TrainerStatus(activity="", step=4, total_steps=4, last_checkpoint=SAVED)),
            (4, SAVED),
        ),
        (1, last_words(TrainerStatus(activity="", step=4, total_steps=4, last_checkpoint=SAVED)), (1, None)),
        (0, '{"step": -1}', (1, None)),
        (0, "", (1, None)),
    ],
)
def test_of_a_trainer_that_ends_before_it_is_asked_again_its_last_words_count(code, message, expected):
    """An operator with a thousand jobs asks each once in fifty seconds."""

    async def main() -> None:
        trainers, warned = TrainerClient(b"k" * 32), {**REPORT, "overlong": "3 rows"}
        async with (
            asyncio.timeout(20),
            serving(answering(warned), "127.9.0.3", 8000, has=token(b"k" * 32, job("a"))),
        ):
            pod = trainer_pod("127.9.0.3")
            while await trainers.read(job("a"), [pod]) is None:
                pass
        ended = replace(pod, up=False, ended=Ended(9.0, code, "", log=f"above\n{message}"))
        status = await trainers.read(job("a"), [ended])
        await trainers.close()
        assert status is not None
        assert (status.step, status.last_checkpoint) == expected
        assert status.overlong == "3 rows"

    asyncio.run(main())


def test_last_words_fit_into_a_termination_message():
    text = "x" * 2048
    saved, members = (
        SAVED.model_copy(update={"uri": text}),
        (MemberStatus(role=T, name="m", uid="u", ready=True),),
    )
    ledger = LedgerStatus(**dict.fromkeys(LedgerStatus.model_fields, LARGEST_COUNT))
    health = HealthStatus(step=1, since=1, reason="r", action="a", message=text)
    status = TrainerStatus(
        activity="a", total_steps=LARGEST_COUNT, last_checkpoint=saved, ledger=ledger, health=health,
        overlong=text, data_changed=text, trackers_failed=(text,) * 8, members=members * 3000,
    )  # fmt: skip
    figures = dict.fromkeys(
        (n for n, f in TrainerStatus.model_fields.items() if f.annotation == float | None), 1 / 3
    )
    words = last_words(status.model_copy(update=figures))
    assert len(words) < 4000
    assert with_last_words(None, words) == TrainerStatus(
        **{
            "activity": "a",
            "total_steps": LARGEST_COUNT,
            "last_checkpoint": saved,
            "ledger": ledger,
            **figures,
        }
    )


def test_a_job_from_before_the_key_was_changed_is_talked_to_by_the_former_key():
    async def main() -> None:
        new, former = b"n" * 32, b"f" * 32
        methods = []

        async def handler(request: web.Request) -> web.StreamResponse:
            methods.append(request.method)
            return web.json_response(REPORT)

        async with asyncio.timeout(20), serving(handler, "127.9.0.4", 8000, has=token(former, job("a"))):
            pods = [trainer_pod("127.9.0.4")]
            trainers = TrainerClient(new, former)
            while await trainers.read(job("a"), pods) is None:
                pass
            assert methods == ["GET"]
            assert await trainers.push_membership(job("a"), pods, Membership())
            assert methods[-1] == "PUT"
            assert (trainers.trainer_error(job("a")), trainers.key(job("a"))) == ("", former)
            await trainers.close()

            stranger = TrainerClient(new)
            assert await stranger.read(job("a"), pods) is None
            while stranger.silent_since(job("a")) is None:
                await stranger.read(job("a"), pods)
            assert "does not have the job's token: its token is of another key" in stranger.trainer_error(
                job("a")
            )
            await stranger.close()

    asyncio.run(main())


async def claims(_: web.Request, _trainer: str) -> web.StreamResponse:
    return web.json_response({"nonce": "0" * 32, "proof": "0" * 64, **REPORT})


async def lacks(_: web.Request, _trainer: str) -> web.StreamResponse:
    raise web.HTTPNotFound


async def refuses(_: web.Request, _trainer: str) -> web.StreamResponse:
    raise web.HTTPUnauthorized


async def relays(request: web.Request, trainer: str) -> web.StreamResponse:
    """To another process of the job, whose answer is a good one."""
    async with aiohttp.ClientSession() as session, session.get(trainer + request.path_qs) as reply:
        return web.Response(status=reply.status, body=await reply.read())


@pytest.mark.parametrize("squat", [claims, lacks, refuses, relays])
def test_a_squatter_of_the_trainers_port_is_sent_nothing_but_questions(squat):
    """It has answered the kubelet's probe, so that the pod counts as up."""

    async def main() -> None:
        key, sent, url = b"k" * 32, list[str](), "http://127.9.0.7:8000"
        secret = token(key, job("a"))

        async def squatter(request: web.Request) -> web.StreamResponse:
            sent.append(f"{request.path} {dict(request.headers)} {await request.text()}")
            return await squat(request, trainer)

        async with (
            asyncio.timeout(20),
            serving(answering(REPORT), "127.9.0.6", 8000, has=secret) as trainer,
            serving(squatter, "127.9.0.7", 8000, has=None),
            ControlClient(secret) as client,
        ):
            trainers = TrainerClient(key)
            while not trainers.trainer_error(job("a")):
                assert await trainers.read(job("a"), [trainer_pod("127.9.0.7")]) is None
            assert "or another process has the trainer's port" in trainers.trainer_error(job("a"))
            assert not await client.members(url, Membership())
            assert not await client.stop(url)
            await trainers.close()
        assert len(sent) == 3
        assert all(each.startswith(PROOF) for each in sent)
        assert not any("Authorization" in each or secret in each for each in sent)

    asyncio.run(main())


@pytest.mark.parametrize("bare", [True, False])
def test_a_trainer_of_the_last_release_is_sent_the_token_itself_where_nobody_else_can_be(bare):
    async def main() -> None:
        sent = set[str | None]()

        async def handler(request: web.Request) -> web.StreamResponse:
            sent.add(request.headers.get("Authorization"))
            return web.json_response(REPORT, status=200 if "Authorization" in request.headers else 401)

        async with asyncio.timeout(20), serving(handler, "127.9.0.8", 8000, has=None):
            trainers, pods = TrainerClient(b"k" * 32), [trainer_pod("127.9.0.8")]
            report = None
            while report is None and not trainers.trainer_error(job("a")):
                report = await trainers.read(job("a"), pods, bare=bare)
            await trainers.close()
        assert (report is not None) == bare
        assert sent == {f"Bearer {token(b'k' * 32, job('a'))}" if bare else None}

    asyncio.run(main())
