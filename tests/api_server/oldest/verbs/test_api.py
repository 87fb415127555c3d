"""The client: what it asks of a real API server, and what it makes of answers that are none."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from tests.support.kubernetes.cluster import Cluster

from rlhf_operator.kube import api as module
from rlhf_operator.kube.api import Api
from rlhf_operator.kube.api_error import ApiError


@pytest.fixture
def talk(
    control_plane: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Api], Awaitable[object]]], list]:
    """Runs a test's body with a client of the control plane; returns the calls that it made."""

    def run(body: Callable[[Api], Awaitable[object]]) -> list:
        monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
        calls = []

        async def main() -> None:
            async with await Api.connect(lambda *call: calls.append(call[:3])) as api:
                await body(api)

        asyncio.run(main())
        return calls

    return run


def config_map(namespace: str, name: str = "a", **data: str) -> dict:
    metadata = {"name": name, "namespace": namespace, "labels": {"kind-of": name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_a_dry_run_is_judged_and_makes_nothing(talk, namespace):
    async def body(api: Api) -> None:
        await api.create(config_map(namespace), dry_run=True)
        with pytest.raises(ApiError) as wrong:
            await api.create(config_map(namespace, "No Name"), dry_run=True)
        assert wrong.value.status == 422
        with pytest.raises(ApiError) as none:
            await api.get("ConfigMap", namespace, "a")
        assert none.value.status == 404

    talk(body)


def test_objects_come_and_go(talk, namespace):
    async def body(api: Api) -> None:
        made = await api.create(config_map(namespace, x="1"))
        assert (await api.get("ConfigMap", namespace, "a"))["metadata"]["uid"] == made["metadata"]["uid"]
        with pytest.raises(ApiError) as twice:
            await api.create(config_map(namespace, x="1"))
        assert (twice.value.status, twice.value.reason) == (409, "AlreadyExists")
        await api.delete("ConfigMap", namespace, "a", uid=made["metadata"]["uid"], grace=0)
        with pytest.raises(ApiError) as missing:
            await api.get("ConfigMap", namespace, "a")
        assert missing.value.status == 404
        assert 'configmaps "a" not found' in str(missing.value)

    assert talk(body) == [
        ("create", "ConfigMap", 201),
        ("get", "ConfigMap", 200),
        ("create", "ConfigMap", 409),
        ("delete", "ConfigMap", 200),
        ("get", "ConfigMap", 404),
    ]


def test_deleting_what_is_gone_or_another_by_now_is_fine(talk, namespace):
    async def body(api: Api) -> None:
        await api.delete("ConfigMap", namespace, "never-there")
        made = await api.create(config_map(namespace))
        await api.delete("ConfigMap", namespace, "a", uid="of-an-earlier-one")
        assert await api.get("ConfigMap", namespace, "a") == made

    talk(body)


def test_apply_makes_and_changes_and_takes_what_others_wrote(talk, namespace):
    async def body(api: Api) -> None:
        first = await api.apply(config_map(namespace, x="1", y="1"))
        assert await api.apply(config_map(namespace, x="1", y="1")) == first  # no new version
        await api.replace({**first, "data": {"x": "theirs", "y": "1", "z": "theirs"}})
        after = await api.apply(config_map(namespace, x="2"))
        assert after["data"] == {"x": "2", "z": "theirs"}  # y was only ours

    talk(body)


def test_replacing_needs_the_newest_version(talk, namespace):
    async def body(api: Api) -> None:
        made = await api.create(config_map(namespace, x="1"))
        await api.replace({**made, "data": {"x": "2"}})
        with pytest.raises(ApiError) as late:
            await api.replace({**made, "data": {"x": "3"}})
        assert (late.value.status, late.value.reason) == (409, "Conflict")

    talk(body)


def test_a_list_is_read_page_by_page(talk, namespace, monkeypatch):
    monkeypatch.setattr(module, "_PAGE", 2)

    async def body(api: Api) -> None:
        for name in "abcde":
            await api.create(config_map(namespace, name, x=name))
        items = [item async for item in api.list("ConfigMap", namespace, labels="kind-of in (a,b,c,e)")]
        assert [(item["kind"], item["apiVersion"], item["data"]) for item in items] == [
            ("ConfigMap", "v1", {"x": name}) for name in "abce"
        ]
        brief = [item async for item in api.list("ConfigMap", None, labels="kind-of=d", metadata_only=True)]
        assert [(item["kind"], item["metadata"]["name"]) for item in brief] == [("ConfigMap", "d")]
        assert "data" not in brief[0]

    assert talk(body).count(("list", "ConfigMap", 200)) >= 3


def test_what_is_refused_says_why(talk, namespace):
    async def body(api: Api) -> None:
        bad = config_map(namespace)
        bad["metadata"]["name"] = "Not A Name"
        with pytest.raises(ApiError) as refused:
            await api.create(bad)
        assert (refused.value.status, refused.value.reason) == (422, "Invalid")
        assert "metadata.name" in refused.value.message

    talk(body)


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_every_character_arrives(talk, namespace, verb):
    """Also one beyond U+FFFF, which JSON may write as two escapes and YAML may not; half of such a pair is replaced."""
    text = "\U0001f680 \u2588 ü \x7f \x85 \u2028 \ufeff \ufffe \\ud83d\\ude80 \0"

    async def body(api: Api) -> None:
        made = await getattr(api, verb)(config_map(namespace, x=text, half="\ud83d"))
        assert made["data"] == {"x": text, "half": "\ufffd"}

    talk(body)


def test_kinds_that_the_server_knows(talk):
    async def body(api: Api) -> None:
        assert await api.serves("Pod")
        assert await api.serves("Lease")
        assert not await api.serves("PodGroup.scheduling.volcano.sh")

    talk(body)


def test_who_no_longer_leads_changes_nothing(talk, namespace):
    async def body(api: Api) -> None:
        made = await api.create(config_map(namespace, x="1"))
        api.fence = lambda: False
        for change in (
            api.create(config_map(namespace, "b")),
            api.apply(config_map(namespace, x="2")),
            api.apply_status(config_map(namespace, x="2")),
            api.delete("ConfigMap", namespace, "a"),
        ):
            with pytest.raises(ApiError, match="no longer holds the lease"):
                await change
        assert await api.get("ConfigMap", namespace, "a") == made

    assert len(talk(body)) == 2


def test_no_cluster_is_said_with_the_way_to_one(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="set KUBECONFIG or run in a pod"):
        asyncio.run(Api.connect())


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Api]:
    """A client of something that is no API server."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with Api(Configuration(host=f"http://{host}:{port}")) as api:
            yield api
    finally:
        await runner.cleanup()


def failure(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> ApiError:
    """The error that `get` raises at this reply."""

    async def main() -> ApiError:
        async with answering(answer) as api:
            with pytest.raises(ApiError) as error:
                await api.get("Pod", "ns", "p")
            return error.value

    return asyncio.run(main())


@pytest.mark.parametrize("in_header", [True, False])
def test_the_server_says_when_to_come_again(in_header):
    async def answer(_: web.Request) -> web.Response:
        status = {"kind": "Status", "reason": "TooManyRequests", "message": "slow down", "details": {}}
        headers = {"Retry-After": "7"} if in_header else {}
        if not in_header:
            status["details"] = {"retryAfterSeconds": 7}
        return web.json_response(status, status=429, headers=headers)

    error = failure(answer)
    assert (error.status, error.reason, error.retry_after) == (429, "TooManyRequests", 7.0)


@pytest.mark.parametrize("status", [200, 502])
def test_an_answer_of_something_else_is_an_error(status):
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="<html>Bad Gateway</html>", status=status, content_type="text/html")

    error = failure(answer)
    assert error.status == status
    assert "Bad Gateway" in str(error)


def test_silence_ends_after_the_deadline(monkeypatch):
    monkeypatch.setattr(module, "_DEADLINE_SECONDS", 0.3)

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    error = failure(answer)
    assert error.status == 0
    assert "no answer within 0.3 s" in str(error)


def test_a_body_that_never_ends_does_too(monkeypatch):
    monkeypatch.setattr(module, "_DEADLINE_SECONDS", 0.3)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps({"kind": "Pod"})[:-1].encode())
        await asyncio.sleep(30)
        return response

    assert failure(answer).status == 0


def test_nobody_there_is_an_error_without_status():
    async def main() -> None:
        async with Api(Configuration(host="http://127.0.0.1:1")) as api:
            with pytest.raises(ApiError, match="GET /api/v1/namespaces/ns/pods/p") as error:
                await api.get("Pod", "ns", "p")
            assert error.value.status == 0

    asyncio.run(main())


def test_errors_tell_no_token():
    async def main() -> str:
        configuration = Configuration(host="http://127.0.0.1:1")
        configuration.api_key["BearerToken"] = "Bearer s3cr3t"
        async with Api(configuration) as api:
            with pytest.raises(ApiError) as error:
                await api.get("Pod", "ns", "p")
            return repr(error.value) + str(error.value)

    assert "s3cr3t" not in asyncio.run(main())
