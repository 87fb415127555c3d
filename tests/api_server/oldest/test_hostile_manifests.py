"""A manifest that is as deep or as large as an API server accepts fails its own job, and no other notices."""

import asyncio
import json
import sys
from collections.abc import Iterator

import pytest
from tests.api_server.oldest.jobs import PODS
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl

from rlhf_operator.cluster.watching.watch import watch

pytestmark = pytest.mark.usefixtures("crd", "python_as_it_starts")
LEVELS = 9_000


@pytest.fixture
def python_as_it_starts() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture
def deep(control_plane: Cluster, namespace: str) -> str:
    """The name of such a job: Python cannot write it, so it is made as text."""
    body = job(namespace, "deep")
    body["spec"] = body["spec"] | {"pods": {"template": {"spec": {"tolerations": "HERE"}}}}
    text = json.dumps(body).replace('"HERE"', "[" * LEVELS + "]" * LEVELS)
    path = f"/apis/rlhf.dev/v1alpha1/namespaces/{namespace}/rlhfjobs"
    kubectl(control_plane.kubeconfig, "create", "--raw", path, "-f", "-", input=text)
    return "deep"


def test_it_fails_with_its_field_and_other_jobs_start(
    operators: Operators, namespace: str, deep: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile(deep)
        await operator.reconcile("ppo")
        status = (await operator.api.get("RLHFJob", namespace, deep))["status"]
        assert status["phase"] == "Failed"
        assert "spec.pods.template.spec: is nested too deeply" in status["message"]
        assert await operator.names("Pod") == PODS

    operators(body)


def test_the_watch_delivers_it_and_what_comes_after(operators: Operators, namespace: str, deep: str) -> None:
    async def body(operator: SteppedOperator) -> None:
        names, all_seen = set[str](), asyncio.Event()

        def see(body: dict, _deleted: bool) -> None:
            operator.cache.put(body)
            names.add(body["metadata"]["name"])
            if names >= {deep, "ppo"}:
                all_seen.set()

        watching = asyncio.create_task(watch(operator.api, [namespace], ["RLHFJob"], see))
        await operator.api.create(job(namespace))
        ended = asyncio.create_task(all_seen.wait())
        await asyncio.wait({watching, ended}, return_when=asyncio.FIRST_COMPLETED)
        assert ended.done()
        watching.cancel()
        await asyncio.wait({watching})

    operators(body)


def test_one_that_is_too_large_fails_with_its_size_and_is_never_kept(
    operators: Operators, namespace: str
) -> None:
    large = job(namespace, "large")
    tolerations = [{"key": f"k{i}"} for i in range(20_000)]
    large["spec"] = large["spec"] | {"pods": {"template": {"spec": {"tolerations": tolerations}}}}

    async def body(operator: SteppedOperator) -> None:
        reported = asyncio.Queue[dict]()
        watching = asyncio.create_task(
            watch(operator.api, [namespace], ["RLHFJob"], lambda body, _deleted: reported.put_nowait(body))
        )
        await operator.api.create(large)
        assert len(json.dumps(await reported.get())) < 4_000
        watching.cancel()
        await asyncio.wait({watching})
        await operator.api.create(job(namespace))
        await operator.reconcile("large")
        await operator.reconcile("ppo")
        status = (await operator.api.get("RLHFJob", namespace, "large"))["status"]
        failed = next(each for each in status["conditions"] if each["type"] == "Failed")
        assert failed["reason"] == "ValidationFailed"
        assert "spec: must have at most 262,144 bytes as JSON; got 3" in failed["message"]
        assert await operator.names("Pod") == PODS

    operators(body)
