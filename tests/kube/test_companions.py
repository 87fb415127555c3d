"""What a job has beside its pods: made again where somebody deletes it, and not that of a predecessor."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.kube.jobs import PPO
from tests.support.cluster import Cluster

from rlhf_operator.cluster import resync
from rlhf_operator.cluster.api import Api, ApiError
from rlhf_operator.cluster.cache import COMPANIONS, Cache
from rlhf_operator.cluster.reconcile import Reconciler
from rlhf_operator.cluster.recorder import Recorder
from rlhf_operator.cluster.settings import Settings
from rlhf_operator.cluster.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("crd")
RELEASE_0_1 = json.loads((Path(__file__).parents[1] / "reconcile" / "release-0.1.0.json").read_text())
WATCHED = ("RLHFJob", "Pod")


class Hands:
    """An operator whose looks at jobs are taken one by one."""

    def __init__(self, api: Api, namespace: str, image: str) -> None:
        self.api, self.cache, self.namespace = api, Cache(), namespace
        settings = Settings(trainer_image=image, token_key=b"k" * 48, own_namespace=namespace)
        self.reconciler = Reconciler(settings, api, self.cache, Recorder(api), Telemetry())

    async def look(self, name: str) -> None:
        """With everything known that there is."""
        await resync.fill(self.api, self.namespace, WATCHED, lambda body, _: self.cache.put(body))
        await self.reconciler.reconcile((self.namespace, name))

    async def names(self, kind: str) -> set[str]:
        found = self.api.list(kind, self.namespace, labels="rlhf.dev/job")
        return {body["metadata"]["name"] async for body in found}


@pytest.fixture
def hands(control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Callable:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    @asynccontextmanager
    async def made(image: str = "trainer:1") -> AsyncIterator[Hands]:
        async with asyncio.timeout(60), await Api.connect() as api:
            working = Hands(api, namespace, image)
            yield working
            await working.reconciler.close()

    return made


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())


def job(namespace: str, name: str = "ppo") -> dict:
    return {**PPO, "metadata": {"name": name, "namespace": namespace}}


@pytest.mark.parametrize("kind", COMPANIONS)
def test_what_somebody_deletes_is_made_again(hands, namespace, kind):
    async def body() -> None:
        async with hands() as operator:
            await operator.api.create(job(namespace))
            await operator.look("ppo")
            (name,) = await operator.names(kind)
            before = {other: await operator.names(other) for other in (*COMPANIONS, "Pod")}
            await operator.api.delete(kind, namespace, name)
            await operator.look("ppo")
            assert await operator.names(kind) == set()  # nobody has looked for it yet
            touched = await resync.sweep(operator.api, namespace, WATCHED, operator.cache)
            assert (namespace, "ppo") in touched
            await operator.look("ppo")
            assert {other: await operator.names(other) for other in (*COMPANIONS, "Pod")} == before

    run(body)


def test_a_name_may_begin_with_a_digit(hands, namespace):
    async def body() -> None:
        async with hands() as operator:
            await operator.api.create(job(namespace, "7b-ppo"))
            await operator.look("7b-ppo")
            assert await operator.names("Service") == {"rlhf-7b-ppo"}
            assert len(await operator.names("Pod")) == 4

    run(body)


def test_a_job_of_an_earlier_ones_name_has_a_token_of_its_own(hands, namespace):
    """The old Secret is still there, for the garbage collector to take."""

    async def body() -> None:
        async with hands() as operator:
            await operator.api.create(job(namespace))
            await operator.look("ppo")
            first = await operator.names("Secret")
            orphan = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
            path = f"/apis/rlhf.dev/v1alpha1/namespaces/{namespace}/rlhfjobs/ppo"
            await operator.api._call("delete", "DELETE", "RLHFJob", path, body=orphan)
            await operator.api.create(job(namespace))
        async with hands() as operator:
            with pytest.raises(ApiError, match="already exists"):
                await operator.look("ppo")  # the old pods have to go first
            assert len(await operator.names("Secret") - first) == 1

    run(body)


def test_jobs_of_the_last_release_run_on_under_this_one(hands, namespace):
    """Their pods stay, their ConfigMap stays word for word, and a generator that is replaced has their image."""

    def here(body: dict, owner: str | None) -> dict:
        meta = {k: v for k, v in body["metadata"].items() if k not in ("uid", "creationTimestamp")}
        meta["namespace"] = namespace
        if owner is not None:
            meta["ownerReferences"] = [{**meta["ownerReferences"][0], "uid": owner}]
        return {**body, "metadata": meta}

    async def body() -> None:
        async with hands("registry.example/rlhf-trainer:0.2.0") as operator:
            api = operator.api
            made = await api.create(
                here({k: v for k, v in RELEASE_0_1["job"].items() if k != "status"}, None)
            )
            uid = made["metadata"]["uid"]
            for companion in RELEASE_0_1["companions"]:
                await api.apply(here(companion, uid))
            for pod in RELEASE_0_1["pods"]:
                await api.create(here({k: v for k, v in pod.items() if k != "status"}, uid))
            await api.apply_status(
                {
                    **{k: made[k] for k in ("apiVersion", "kind")},
                    "metadata": {"name": "job", "namespace": namespace},
                    "status": RELEASE_0_1["job"]["status"],
                }
            )
            pods = {p["metadata"]["name"]: p async for p in api.list("Pod", namespace)}
            await operator.look("job")
            after = {p["metadata"]["name"]: p async for p in api.list("Pod", namespace)}
            assert {n: p["metadata"]["uid"] for n, p in after.items()} == {
                n: p["metadata"]["uid"] for n, p in pods.items()
            }
            status = (await api.get("RLHFJob", namespace, "job"))["status"]
            assert status["cluster"]["attempt"] == 1
            assert "SpecChanged" not in [c["type"] for c in status["conditions"]]
            old = RELEASE_0_1["companions"][0]
            kept = await api.get("ConfigMap", namespace, old["metadata"]["name"])
            assert kept["data"].items() >= old["data"].items()
            await api.delete("Pod", namespace, "job-generator-0", grace=0)
            operator.cache.drop(after["job-generator-0"])
            await operator.look("job")
            new = await api.get("Pod", namespace, "job-generator-0")
            (container,) = new["spec"]["containers"]
            assert container["image"] == "registry.example/rlhf-trainer:0.1.0"
            assert {v["name"]: v for v in new["spec"]["volumes"]}["config"]["configMap"]["name"] == old[
                "metadata"
            ]["name"]

    run(body)
