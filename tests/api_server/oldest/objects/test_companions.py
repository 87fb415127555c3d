"""A job's objects beside its pods (Service, ConfigMap, Secret): recreated when deleted, and never an earlier job's of
the same name."""

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from tests.api_server.oldest.jobs import ROOT
from tests.api_server.oldest.schedulers import VOLCANO
from tests.api_server.oldest.stepped_operator import SERVED, Operators, SteppedOperator, job, with_companion
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl

from rlhf_operator.kube.api_error import ApiError

pytestmark = pytest.mark.usefixtures("crd")
RELEASE_0_1 = json.loads(
    (Path(__file__).parents[3] / "unit" / "operator" / "cluster" / "release-0.1.0.json").read_text()
)


@pytest.mark.usefixtures("gangs")
@pytest.mark.parametrize("kind", SERVED)
def test_what_somebody_deletes_is_made_again(operators: Operators, namespace, kind):
    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(with_companion(namespace, kind))
        await operator.reconcile("ppo")
        (name,) = await operator.names(kind)
        before = {other: await operator.names(other) for other in (*SERVED, "Pod")}
        await operator.api.delete(kind, namespace, name)
        await operator.reconcile("ppo")
        assert await operator.names(kind) == set()  # nobody has looked for it yet
        swept = await operator.sweep()
        assert (namespace, "ppo") in swept.touched
        await operator.reconcile("ppo")
        assert {other: await operator.names(other) for other in (*SERVED, "Pod")} == before

    operators(body)


def test_a_prometheus_may_scrape_generators_of_running_jobs_too(operators: Operators, namespace):
    """With the values and the PodMonitor of docs/concepts/operator.md."""
    page = (ROOT / "docs" / "concepts" / "operator.md").read_text()
    values, monitor, *_ = (
        yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    )
    peers = tuple(values["jobs"]["metricsFrom"])

    async def let_in(operator: SteppedOperator) -> list[dict]:
        (name,) = await operator.names("NetworkPolicy")
        policy = await operator.api.get("NetworkPolicy", namespace, name)
        rules = [rule for rule in policy["spec"]["ingress"] if "ports" in rule]
        return [peer for rule in rules for peer in rule["from"]]

    async def before(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        only.extend(await let_in(operator))

    async def after(operator: SteppedOperator) -> None:
        await operator.reconcile("ppo")
        assert await let_in(operator) == [*only, *peers]
        selector = ",".join("=".join(label) for label in monitor["spec"]["selector"]["matchLabels"].items())
        (pod,) = [pod async for pod in operator.api.list("Pod", namespace, labels=selector)]
        assert pod["metadata"]["name"] == "ppo-generator-0"
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports

    only = list[dict]()
    operators(before)
    operators(after, metrics_from=peers)


def test_a_job_of_an_earlier_ones_name_has_a_token_of_its_own(operators: Operators, namespace):
    """The old Secret is still there, for the garbage collector to take."""

    async def body(operator: SteppedOperator, successor: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        first = await operator.names("Secret")
        orphan = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
        path = f"/apis/rlhf.dev/v1alpha1/namespaces/{namespace}/rlhfjobs/ppo"
        await operator.api._call("delete", "DELETE", "RLHFJob", path, body=orphan)
        while [remaining async for remaining in operator.api.list("RLHFJob", namespace)]:
            await asyncio.sleep(0.1)
        await operator.api.create(job(namespace))
        with pytest.raises(ApiError, match="exists already"):
            await successor.reconcile("ppo")  # the old pods have to go first
        assert len(await operator.names("Secret") - first) == 1

    operators(body)


def test_jobs_of_the_last_release_run_on_under_this_one(operators: Operators, namespace):
    """Pods and ConfigMap stay unchanged, and a replaced generator gets the image of the running pods."""

    def here(body: dict, owner: str | None) -> dict:
        meta = {k: v for k, v in body["metadata"].items() if k not in ("uid", "creationTimestamp")}
        meta["namespace"] = namespace
        if owner is not None:
            meta["ownerReferences"] = [{**meta["ownerReferences"][0], "uid": owner}]
        return {**body, "metadata": meta}

    async def body(operator: SteppedOperator) -> None:
        api = operator.api
        made = await api.create(here({k: v for k, v in RELEASE_0_1["job"].items() if k != "status"}, None))
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
        await operator.reconcile("job")
        after = {p["metadata"]["name"]: p async for p in api.list("Pod", namespace)}
        assert {n: p["metadata"]["uid"] for n, p in after.items()} == {
            n: p["metadata"]["uid"] for n, p in pods.items()
        }
        status = (await api.get("RLHFJob", namespace, "job"))["status"]
        assert status["cluster"]["attempt"] == 1
        assert "SpecChanged" not in [c["type"] for c in status["conditions"]]
        old = RELEASE_0_1["companions"][0]
        stored = await api.get("ConfigMap", namespace, old["metadata"]["name"])
        assert stored["data"].items() >= old["data"].items()
        await api.delete("Pod", namespace, "job-generator-0", grace=0)
        operator.cache.drop(after["job-generator-0"])
        await operator.reconcile("job")
        new = await api.get("Pod", namespace, "job-generator-0")
        (container,) = new["spec"]["containers"]
        assert container["image"] == "registry.example/rlhf-trainer:0.1.0"
        assert {v["name"]: v for v in new["spec"]["volumes"]}["config"]["configMap"]["name"] == old[
            "metadata"
        ]["name"]

    operators(body, trainer_image="registry.example/rlhf-trainer:0.2.0")


@pytest.mark.parametrize("label", ["rlhf.dev/role", "rlhf.dev/attempt", "rlhf.dev/job"])
def test_a_pod_whose_labels_somebody_took_is_replaced(
    operators: Operators, namespace, control_plane: Cluster, label
):
    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        before = (await operator.api.get("Pod", namespace, "ppo-reward-0"))["metadata"]["uid"]
        where = ("pod", "ppo-reward-0", "-n", namespace, f"{label}-")
        await asyncio.to_thread(kubectl, control_plane.kubeconfig, "label", *where)
        await operator.reconcile("ppo")
        # Its node would end it: there is none.
        with suppress(ApiError):
            await operator.api.delete("Pod", namespace, "ppo-reward-0", uid=before, grace=0)
        operator.cache.drop_uids("Pod", [before])
        for _ in range(3):
            await operator.reconcile("ppo")
        after = (await operator.api.get("Pod", namespace, "ppo-reward-0"))["metadata"]
        assert after["uid"] != before
        assert after["labels"]["rlhf.dev/role"] == "reward"

    operators(body)


@pytest.mark.usefixtures("gangs")
def test_other_listings_go_on_when_a_gangs_definition_is_removed(
    operators: Operators, namespace: str, control_plane: Cluster
) -> None:
    """The last test here: nothing defines it again."""

    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(with_companion(namespace, "PodGroup.scheduling.volcano.sh"))
        await operator.reconcile("ppo")
        definition = f"crd/{VOLCANO['metadata']['name']}"
        await asyncio.to_thread(kubectl, control_plane.kubeconfig, "delete", definition)
        assert (await operator.sweep()).touched == set()
        await operator.api.delete("Service", namespace, "ppo-rlhf")
        assert (await operator.sweep()).touched == {(namespace, "ppo")}

    operators(body)
