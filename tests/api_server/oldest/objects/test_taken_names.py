"""An object of somebody else with the name of one of a job's: it is left alone, and the job says which one it is."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.api_server.oldest.schedulers import KUEUE, VOLCANO
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl

from rlhf_operator.job.names import QUEUE
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.kube.kinds import body_path, kind_of

PORTS = [{"port": 80}]
GANG = ("scheduling.volcano.sh/v1beta1", "PodGroup")
WORKLOAD = ("kueue.x-k8s.io/v1beta2", "Workload")
THEIRS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("v1", "Service"): ("ppo-rlhf", {"selector": {"app": "theirs"}, "ports": PORTS}),
    ("v1", "Pod"): ("ppo-reward-0", {"containers": [{"name": "c", "image": "theirs:1"}]}),
    GANG: ("ppo", {"minMember": 1}),
    WORKLOAD: ("ppo", {"podSets": [{"name": "main", "count": 1, "template": {"spec": {}}}]}),
}


@pytest.fixture(scope="module", autouse=True)
def definitions(control_plane: Cluster, crd: None) -> Iterator[None]:
    del crd
    kubeconfig = control_plane.kubeconfig
    names = [f"crd/{definition['metadata']['name']}" for definition in (VOLCANO, KUEUE)]
    for definition in (VOLCANO, KUEUE):
        kubectl(kubeconfig, "create", "-f", "-", input=json.dumps(definition))
    kubectl(kubeconfig, "wait", *names, "--for=condition=Established")
    yield
    kubectl(kubeconfig, "delete", *names)


def theirs(namespace: str, version: str, kind: str, **metadata: Any) -> dict[str, Any]:
    name, spec = THEIRS[version, kind]
    made = {"name": name, "namespace": namespace, **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": made, "spec": spec}


def with_all(namespace: str) -> dict[str, Any]:
    """A job that has an object of each kind; in a queue it waits for its Workload, and has no other."""
    made = job(namespace)
    more = {"trainer": {"replicas": 2}, "scheduling": {"gang": "volcano"}}
    return {**made, "spec": {**made["spec"], **more}}


def queued(namespace: str) -> dict[str, Any]:
    made = job(namespace)
    return {**made, "metadata": {**made["metadata"], "labels": {QUEUE: "research"}}}


async def stalled(operator: SteppedOperator) -> dict[str, Any]:
    status = (await operator.api.get("RLHFJob", operator.namespace, "ppo"))["status"]
    return next(each for each in status["conditions"] if each["type"] == "Stalled")


@pytest.mark.parametrize(("version", "kind"), THEIRS)
def test_it_is_left_alone_and_told_and_the_job_waits(
    operators: Operators, namespace: str, version: str, kind: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        made = await operator.api.create(theirs(namespace, version, kind))
        name, key = made["metadata"]["name"], kind_of(made)
        await operator.api.create((queued if kind == "Workload" else with_all)(namespace))
        for _ in range(2):
            with pytest.raises(
                ApiError, match=f"{kind} {name} exists already and is not this job's"
            ) as refusal:
                await operator.reconcile("ppo")
        assert refusal.value.of_job
        stored = await operator.api.get(key, namespace, name)
        assert (stored["spec"], stored["metadata"].get("ownerReferences")) == (made["spec"], None)
        assert "rlhf.dev/job" not in stored["metadata"].get("labels", {})
        condition = await stalled(operator)
        assert (condition["status"], condition["reason"]) == ("True", "PodsRefused")
        assert f"{kind} {name} exists already and is not this job's: delete it" in condition["message"]
        await operator.api.delete(key, namespace, name, grace=0)
        operator.cache.drop(stored)
        for _ in range(2):
            await operator.reconcile("ppo")
        (owner,) = (await operator.api.get(key, namespace, name))["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("RLHFJob", "ppo")
        assert (await stalled(operator))["reason"] != "PodsRefused"

    operators(body)


def test_what_replaces_one_of_a_running_jobs_is_left_alone(operators: Operators, namespace: str) -> None:
    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(with_all(namespace))
        await operator.reconcile("ppo")
        await operator.api.delete("Service", namespace, "ppo-rlhf")
        made = await operator.api.create(theirs(namespace, "v1", "Service"))
        await operator.sweep()
        with pytest.raises(ApiError, match="Service ppo-rlhf exists already and is not this job's"):
            await operator.reconcile("ppo")
        assert (await operator.api.get("Service", namespace, "ppo-rlhf"))["spec"] == made["spec"]

    operators(body)


def test_the_name_of_one_generators_pod_holds_up_no_other(operators: Operators, namespace: str) -> None:
    async def body(operator: SteppedOperator) -> None:
        spec = {"containers": [{"name": "c", "image": "theirs:1"}]}
        metadata = {"name": "ppo-generator-0", "namespace": namespace}
        await operator.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        made = job(namespace)
        made["spec"] = {**made["spec"], "generator": {"replicas": 3}}
        await operator.api.create(made)
        with pytest.raises(ApiError, match="Pod ppo-generator-0 exists already"):
            await operator.reconcile("ppo")
        assert {"ppo-generator-1", "ppo-generator-2"} < await operator.names("Pod")

    operators(body)


@pytest.mark.parametrize("lost", ["ownerReferences", "labels"])
def test_ones_own_that_has_lost_its_owner_or_its_labels_is_put_back(
    operators: Operators,
    namespace: str,
    control_plane: Cluster,
    lost: str,
) -> None:
    async def body(operator: SteppedOperator, successor: SteppedOperator) -> None:
        await operator.api.create(with_all(namespace))
        await operator.reconcile("ppo")
        for key, kind, name in (
            ("Service", "service", "ppo-rlhf"),
            ("PodGroup.scheduling.volcano.sh", "podgroups.scheduling.volcano.sh", "ppo"),
        ):
            patch = json.dumps({"metadata": {lost: None}})
            where = (kind, name, "-n", namespace, "--type=merge", f"--patch={patch}")
            await asyncio.to_thread(kubectl, control_plane.kubeconfig, "patch", *where)
            await successor.reconcile("ppo")
            again = (await operator.api.get(key, namespace, name))["metadata"]
            assert [owner["name"] for owner in again["ownerReferences"]] == ["ppo"]
            assert again["labels"]["rlhf.dev/job"] == "ppo"
            successor.reconciler._companions.forget((namespace, "ppo"))

    operators(body)


def test_a_workload_whose_labels_somebody_takes_is_found_again(
    operators: Operators, namespace: str, control_plane: Cluster
) -> None:
    """A watch by label tells that it is deleted; its job would wait for ever."""

    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(queued(namespace))
        await operator.reconcile("ppo")
        patch = json.dumps({"metadata": {"labels": None}})
        where = ("workload", "ppo", "-n", namespace, "--type=merge", f"--patch={patch}")
        await asyncio.to_thread(kubectl, control_plane.kubeconfig, "patch", *where)
        operator.cache.drop(await operator.api.get("Workload", namespace, "ppo"))
        for _ in range(2):
            await operator.reconcile("ppo")
        (cached,) = operator.cache.workloads((namespace, "ppo"))
        assert cached["metadata"]["labels"]["rlhf.dev/job"] == "ppo"

    operators(body)


@pytest.mark.parametrize(("version", "kind"), [("v1", "Service"), GANG])
def test_what_the_collector_is_to_take_from_an_earlier_job_is_waited_for(
    operators: Operators, namespace: str, version: str, kind: str
) -> None:
    """A collector deletes by uid, whoever owns the object by then: here it has begun, and a finalizer holds it up. It
    has taken the other one."""
    (other,) = {"Service", kind_of(theirs(namespace, *GANG))} - {kind_of(theirs(namespace, version, kind))}

    async def hold(operator: SteppedOperator, key: str, finalizers: list[str] | None) -> None:
        path = body_path(theirs(namespace, version, kind), THEIRS[version, kind][0])
        await operator.api._merge("patch", key, path, {"metadata": {"finalizers": finalizers}})

    async def body(operator: SteppedOperator) -> None:
        name, key = THEIRS[version, kind][0], kind_of(theirs(namespace, version, kind))
        first = await operator.api.create(with_all(namespace))
        await operator.reconcile("ppo")
        configurations = await operator.names("ConfigMap")
        await hold(operator, key, ["example.com/hold"])
        await operator.api.delete("RLHFJob", namespace, "ppo")
        while "deletionTimestamp" not in (await operator.api.get(key, namespace, name))["metadata"]:
            await asyncio.sleep(0.1)
        while await operator.names(other):
            await asyncio.sleep(0.1)
        second = await operator.api.create(with_all(namespace))
        operator.cache.drop_uids("RLHFJob", [first["metadata"]["uid"]])
        for _ in range(2):
            with pytest.raises(ApiError, match=f"{kind} {name} of an earlier job of this name has not gone"):
                await operator.reconcile("ppo")
        (owner,) = (await operator.api.get(key, namespace, name))["metadata"]["ownerReferences"]
        assert owner["uid"] == first["metadata"]["uid"]
        assert len(await operator.names("ConfigMap") - configurations) == 1
        await hold(operator, key, None)
        while not (pod_names := await operator.names("Pod")) or name not in await operator.names(key):
            with suppress(ApiError):  # its earlier pods, where the collector is slow
                await operator.reconcile("ppo")
            await asyncio.sleep(0.1)
        (owner,) = (await operator.api.get(key, namespace, name))["metadata"]["ownerReferences"]
        assert owner["uid"] == second["metadata"]["uid"]
        assert "ppo-trainer-0" in pod_names

    operators(body)


def test_an_earlier_jobs_admission_starts_no_pod(operators: Operators, namespace: str) -> None:
    """The garbage collector has yet to delete its Workload: the new job waits for one of its own."""

    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(queued(namespace))
        await operator.reconcile("ppo")
        before = await operator.api.get("Workload", namespace, "ppo")
        admitted = {
            "type": "Admitted",
            "status": "True",
            "reason": "Admitted",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await operator.api.merge_status("Workload", namespace, "ppo", {"status": {"conditions": [admitted]}})
        # Kept by a finalizer, as where the collector is slow.
        path = f"/apis/{WORKLOAD[0]}/namespaces/{namespace}/workloads/ppo"
        held = {"metadata": {"finalizers": ["example.com/hold"]}}
        await operator.api._merge("patch", "Workload", path, held)
        await operator.api.delete("RLHFJob", namespace, "ppo")
        while [remaining async for remaining in operator.api.list("RLHFJob", namespace)]:
            await asyncio.sleep(0.1)
        made = await operator.api.create(queued(namespace))
        operator.cache.drop_uids("RLHFJob", [before["metadata"]["ownerReferences"][0]["uid"]])
        with pytest.raises(ApiError, match="Workload ppo of an earlier job of this name has not gone yet"):
            await operator.reconcile("ppo")
        assert await operator.names("Pod") == set()
        await operator.api._merge("patch", "Workload", path, {"metadata": {"finalizers": None}})
        while "ppo" in await operator.names("Workload"):
            await asyncio.sleep(0.1)
        operator.cache.drop_uids("Workload", [before["metadata"]["uid"]])
        await operator.reconcile("ppo")
        (owner,) = (await operator.api.get("Workload", namespace, "ppo"))["metadata"]["ownerReferences"]
        assert owner["uid"] == made["metadata"]["uid"]

    operators(body)
