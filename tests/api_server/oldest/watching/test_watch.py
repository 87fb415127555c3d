"""kopf as the operator's eyes, and the listings beside it, on a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from tests.api_server.oldest.jobs import PPO
from tests.support.kubernetes.cluster import Cluster, ControlPlane
from tests.support.kubernetes.kube import kubectl

from rlhf_operator.cluster.watching import watch as module
from rlhf_operator.cluster.watching.cache import Cache
from rlhf_operator.cluster.watching.resync import fill, sweep
from rlhf_operator.cluster.watching.watch import kinds_served, watch
from rlhf_operator.kube.api import Api
from rlhf_operator.kube.api_error import ApiError

pytestmark = pytest.mark.usefixtures("crd")
KINDS = ["RLHFJob", "Pod"]
LABELS = {"app.kubernetes.io/managed-by": "rlhf-operator", "rlhf.dev/job": "ppo"}


class Reported:
    """Records the objects that a watch reports, by kind and name."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, bool]] = []
        self.bodies: dict[str, dict] = {}
        self._more = asyncio.Event()

    def __call__(self, body: dict, deleted: bool) -> None:
        self.told.append((body["kind"], body["metadata"]["name"], deleted))
        self.bodies[body["metadata"]["name"]] = body
        self._more.set()

    async def until(self, kind: str, name: str, *, deleted: bool = False) -> dict:
        async with asyncio.timeout(120):
            while (kind, name, deleted) not in self.told:
                self._more.clear()
                await self._more.wait()
        return self.bodies[name]


@pytest.fixture
def talk(
    control_plane: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Api, Reported], Awaitable[None]]], None]:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    def run(body: Callable[[Api, Reported], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(300), await Api.connect() as api:
                await body(api, Reported())

        asyncio.run(main())

    return run


def job(namespace: str, name: str = "ppo") -> dict:
    return {**PPO, "metadata": {"name": name, "namespace": namespace}}


def workload(namespace: str) -> dict:
    template = {"spec": {"containers": [{"name": "role", "image": "x"}]}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "queued", "namespace": namespace, "labels": LABELS},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
    }


def pod(namespace: str, name: str, labels: dict[str, str]) -> dict:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    spec = {"containers": [{"name": "role", "image": "x"}], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@asynccontextmanager
async def watching(api: Api, namespace: str | None, reported: Reported) -> AsyncIterator[None]:
    """Sees changes in the body, at the end of which the watch ends, well within a pod's grace period of 30 s."""
    task = asyncio.create_task(watch(api, [namespace] if namespace else [], KINDS, reported))
    yield
    assert not task.done()
    task.cancel()
    ended, _ = await asyncio.wait({task}, timeout=20)
    assert ended


@pytest.mark.parametrize("everywhere", [True, False])
def test_all_there_is_and_what_happens_is_seen(talk, namespace, everywhere):
    async def body(api: Api, reported: Reported) -> None:
        made = await api.create(job(namespace, "there"))
        async with watching(api, None if everywhere else namespace, reported):
            await reported.until("RLHFJob", "there")
            await api.create(job(namespace, "new"))
            await reported.until("RLHFJob", "new")
            await api.create(pod(namespace, "stranger", {"app": "x"}))
            await api.create(pod(namespace, "ours", LABELS))
            await reported.until("Pod", "ours")
            await api.delete("Pod", namespace, "ours")
            await reported.until("Pod", "ours", deleted=True)
            await api.delete("RLHFJob", namespace, "new")
            deleted = await reported.until("RLHFJob", "new", deleted=True)
            assert (deleted["apiVersion"], deleted["kind"]) == ("rlhf.dev/v1alpha1", "RLHFJob")
            assert ("Pod", "stranger", False) not in reported.told
            # Nothing was written on the objects: no finalizer, no annotation.
            assert await api.get("RLHFJob", namespace, "there") == made

    talk(body)


LISTED = "pods,rlhfjobs.rlhf.dev,configmaps,services,networkpolicies.networking.k8s.io"


@pytest.fixture
def account(control_plane: Cluster, namespace: str, tmp_path: Path) -> Callable[[str], Path]:
    """The kubeconfig of a new account that may list and watch jobs and pods, and list what stands beside them (a sweep
    looks what was deleted), in the namespace or everywhere."""

    def make(scope: str) -> Path:
        run = lambda *words: kubectl(control_plane.kubeconfig, *words)  # noqa: E731
        run("create", "serviceaccount", "watcher", "-n", namespace)
        role, name = ("clusterrole", namespace) if scope == "everywhere" else ("role", "watcher")
        where = [] if scope == "everywhere" else ["-n", namespace]
        run("create", role, name, "--verb=list,watch", f"--resource={LISTED}", *where)
        run(
            "create",
            f"{role}binding",
            name,
            f"--{role}={name}",
            f"--serviceaccount={namespace}:watcher",
            *where,
        )
        token = run("create", "token", "watcher", "-n", namespace).strip()
        config = yaml.safe_load(run("config", "view", "--raw", "--minify", "--flatten"))
        config["users"] = [{"name": "watcher", "user": {"token": token}}]
        config["contexts"][0]["context"]["user"] = "watcher"
        path = tmp_path / "watcher.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    return make


@pytest.mark.parametrize("scope", ["namespace", "everywhere"])
def test_list_and_watch_are_all_it_needs(talk, namespace, account, monkeypatch, caplog, scope):
    kubeconfig = account(scope)

    async def body(admin: Api, reported: Reported) -> None:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        async with await Api.connect() as api:
            where = None if scope == "everywhere" else namespace
            kinds = await kinds_served(api)
            await fill(api, where, kinds, reported)
            async with watching(api, where, reported):
                await admin.create(job(namespace))
                await admin.create(pod(namespace, "ours", LABELS))
                await reported.until("RLHFJob", "ppo")
                await reported.until("Pod", "ours")
                await sweep(api, where, kinds, Cache())

    talk(body)
    assert "403" not in caplog.text
    assert "permission" not in caplog.text


def test_an_api_server_that_was_gone_is_watched_again(talk, namespace, own_control_plane: ControlPlane):
    async def body(api: Api, reported: Reported) -> None:
        async with watching(api, namespace, reported):
            await api.create(job(namespace, "before"))
            await reported.until("RLHFJob", "before")
            own_control_plane.stop_apiserver()
            await asyncio.sleep(3)
            await asyncio.to_thread(own_control_plane.start_apiserver)
            await api.create(job(namespace, "after"))
            await reported.until("RLHFJob", "after")

    talk(body)


def test_a_kind_that_is_no_more_ends_the_watch(talk, namespace, kueue):
    async def body(api: Api, reported: Reported) -> None:
        task = asyncio.create_task(watch(api, [namespace], ["RLHFJob", "Workload"], reported))
        await api.create(workload(namespace))
        await reported.until("Workload", "queued")
        await asyncio.to_thread(kueue)
        with pytest.raises(Exception, match=r"(?i)not ?found"):
            await task

    talk(body)


def test_the_operator_waits_for_its_custom_resource(monkeypatch, caplog):
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.05)
    paths = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        if "rlhf.dev" not in request.path or len(paths) < 4:
            return web.json_response({"reason": "NotFound"}, status=404)
        return web.json_response({"resources": [{"name": "rlhfjobs"}, {"name": "rlhfjobs/status"}]})

    async def main() -> list[str]:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            async with asyncio.timeout(60), Api(Configuration(host=f"http://{host}:{port}")) as api:
                return await kinds_served(api)
        finally:
            await runner.cleanup()

    assert asyncio.run(main()) == ["RLHFJob", "Pod"]
    assert paths[:4] == ["/apis/rlhf.dev/v1alpha1"] * 4
    assert caplog.text.count("does not know RLHFJob") == 1


def test_an_object_that_cannot_be_taken_holds_up_none_that_came_with_it():
    async def main() -> None:
        crossing = module._ThreadHandoff(asyncio.get_running_loop(), reported := Reported())
        for name in ("first", "", "last"):
            crossing.put({"kind": "Pod", "metadata": {"name": name} if name else {}}, False)
        await reported.until("Pod", "last")
        assert reported.told == [("Pod", "first", False), ("Pod", "last", False)]

    asyncio.run(main())


def test_what_was_deleted_unseen_is_noticed(talk, namespace):
    async def body(api: Api, _: Reported) -> None:
        cache = Cache()
        await api.create(job(namespace))
        for name in ("stays", "goes"):
            await api.create(pod(namespace, name, LABELS))
        await fill(api, namespace, KINDS, lambda body, _: cache.put(body))
        assert len(cache.pods((namespace, "ppo"))) == 2
        await api.delete("Pod", namespace, "goes", grace=0)
        assert (await sweep(api, namespace, KINDS, cache)).touched == {(namespace, "ppo")}
        assert [p["metadata"]["name"] for p in cache.pods((namespace, "ppo"))] == ["stays"]
        await api.delete("RLHFJob", namespace, "ppo")
        assert (await sweep(api, namespace, KINDS, cache)).touched == {(namespace, "ppo")}
        assert cache.keys() == []
        with pytest.raises(ApiError):
            await api.get("RLHFJob", namespace, "ppo")

    talk(body)


def test_what_comes_while_a_sweep_lists_is_kept(talk, namespace):
    async def body(api: Api, _: Reported) -> None:
        cache = Cache()
        listing = api.list

        async def slow(*args, **options):
            async for item in listing(*args, **options):
                yield item
            cache.put(json.loads(json.dumps(late)))  # seen by the watch, after the list was read

        late = await api.create(job(namespace, "late"))
        await api.delete("RLHFJob", namespace, "late")
        api.list = slow
        assert (await sweep(api, namespace, ["RLHFJob"], cache)).touched == set()
        assert cache.keys() == [(namespace, "late")]

    talk(body)
