"""A job keeps its place in Kueue's queue, and starts on the flavor that it was given, reconcile by reconcile."""

import copy
from typing import Any

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

from rlhf_operator.job.names import QUEUE
from rlhf_operator.kube.kinds import KINDS

pytestmark = pytest.mark.usefixtures("crd", "kueue")
JOB = "/apis/rlhf.dev/v1alpha1/namespaces/{}/rlhfjobs/ppo"
RUNTIME = "/apis/rlhf.dev/v1alpha1/namespaces/{}/rlhfruntimes/standard"
WORKLOAD = "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads/ppo"


def queued(namespace: str, **spec: Any) -> dict[str, Any]:
    made = copy.deepcopy(job(namespace))
    made["metadata"]["labels"] = {QUEUE: "research"}
    made["spec"] |= spec
    return made


async def change(operator: SteppedOperator, path: str, **fields: Any) -> None:
    """As its users do."""
    await operator.api._merge("patch", "RLHFJob", path.format(operator.namespace), fields)


async def reconcile_times(operator: SteppedOperator, times: int = 1) -> None:
    """With what was deleted meanwhile."""
    for _ in range(times):
        await operator.sweep()
        await operator.reconcile("ppo")


async def read_workload(operator: SteppedOperator) -> dict[str, Any]:
    body: dict[str, Any] = await operator.api.get("Workload", operator.namespace, "ppo")
    return body


async def status(operator: SteppedOperator) -> dict[str, Any]:
    body: dict[str, Any] = (await operator.api.get("RLHFJob", operator.namespace, "ppo"))["status"]
    return body


async def answer(operator: SteppedOperator, *kinds: str) -> None:
    """As Kueue does."""
    fields = {"status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patch = {"status": {"conditions": [{"type": kind, **fields} for kind in kinds]}}
    await operator.api.merge_status("Workload", operator.namespace, "ppo", patch)


def memory(pod_spec: dict[str, Any]) -> str:
    limit: str = pod_spec["containers"][0]["resources"]["limits"]["memory"]
    return limit


def test_quota_reserved_for_small_pods_starts_no_large_ones(operators: Operators, namespace: str) -> None:
    """Admission checks may take minutes between the reservation and the start."""

    def sized(limit: str) -> dict[str, Any]:
        return {"pods": {"resources": {"limits": {"memory": limit}}}}

    async def story(operator: SteppedOperator) -> None:
        runtime = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFRuntime", "spec": sized("4Gi")}
        runtime["metadata"] = {"name": "standard", "namespace": namespace}
        await operator.api.create(runtime)
        await operator.api.create(queued(namespace, runtime={"kind": "RLHFRuntime", "name": "standard"}))
        await reconcile_times(operator)
        small = await read_workload(operator)
        assert memory(small["spec"]["podSets"][0]["template"]["spec"]) == "4Gi"
        await answer(operator, "QuotaReserved")
        await change(operator, RUNTIME, spec=sized("8Gi"))
        await answer(operator, "QuotaReserved", "Admitted")
        await reconcile_times(operator, 2)
        large = await read_workload(operator)
        assert large["metadata"]["uid"] != small["metadata"]["uid"]
        assert memory(large["spec"]["podSets"][0]["template"]["spec"]) == "8Gi"
        assert not await operator.names("Pod")
        await answer(operator, "QuotaReserved", "Admitted")
        await reconcile_times(operator)
        trainer = await operator.api.get("Pod", namespace, "ppo-trainer-0")
        assert memory(trainer["spec"]) == "8Gi"
        await change(operator, RUNTIME, spec=sized("6Gi"))
        await reconcile_times(operator, 2)
        assert (await read_workload(operator))["metadata"]["uid"] == large["metadata"]["uid"], (
            "pods that run stay"
        )
        assert (await status(operator))["phase"] == "Provisioning"

    operators(story)


def test_a_deactivated_job_stays_so_through_a_spec_that_is_refused_and_a_label_that_is_taken_off(
    operators: Operators, namespace: str
) -> None:
    """Otherwise its users could activate it: the next Workload would be active."""

    async def story(operator: SteppedOperator) -> None:
        await operator.api.create(queued(namespace))
        await reconcile_times(operator)
        made = await read_workload(operator)
        await answer(operator, "QuotaReserved", "Admitted", "Evicted")
        await change(operator, WORKLOAD, spec={"active": False})
        arguments = {"generator": {"engineArguments": {"dtype": "half"}}}
        await change(operator, JOB, spec={"suspend": True, **arguments})
        await reconcile_times(operator, 2)
        assert (await status(operator))["phase"] == "Failed"
        held = {c["type"]: c["status"] for c in (await read_workload(operator))["status"]["conditions"]}
        assert held["QuotaReserved"] == "False", "its quota is free for others"
        await change(operator, JOB, spec={"suspend": False, "generator": {"engineArguments": None}})
        await reconcile_times(operator, 2)
        await change(operator, JOB, metadata={"labels": {QUEUE: None}})
        await reconcile_times(operator, 2)
        await change(operator, JOB, metadata={"labels": {QUEUE: "research"}})
        await reconcile_times(operator, 2)
        current = await read_workload(operator)
        assert (current["metadata"]["uid"], current["spec"]["active"]) == (made["metadata"]["uid"], False)
        await change(operator, JOB, metadata={"finalizers": ["example.com/keeps"]})
        await operator.api.delete("RLHFJob", namespace, "ppo")
        await reconcile_times(operator, 3)
        await operator.sweep()
        assert not operator.cache.workloads((namespace, "ppo")), "a deleted job holds nothing"
        await change(operator, JOB, metadata={"finalizers": None})

    operators(story)


def test_an_operator_that_is_told_of_no_workloads_stops_no_job(
    operators: Operators, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own words for a version that it does not serve, as while Kueue's definitions are installed anew."""

    async def story(operator: SteppedOperator, successor: SteppedOperator) -> None:
        await operator.api.create(queued(namespace))
        await reconcile_times(operator)
        await answer(operator, "QuotaReserved", "Admitted")
        await reconcile_times(operator, 2)
        before = await operator.names("Pod")
        assert len(before) == 4
        with monkeypatch.context() as patch:
            patch.setitem(KINDS, "Workload", ("kueue.x-k8s.io/v1beta9", "workloads"))
            assert not await successor.api.serves("Workload")
            await reconcile_times(successor, 2)
            assert await operator.names("Pod") == before
            assert (await status(operator))["phase"] == "Provisioning"
        await operator.api.delete("Workload", namespace, "ppo")
        await reconcile_times(successor)
        assert not await operator.names("Pod"), "the server says that there is none"

    operators(story)


def test_a_workload_whose_deletion_a_finalizer_holds_admits_nobody(
    operators: Operators, namespace: str
) -> None:
    """Kueue has one on each. The answer to the deletion tells of it before any watch does."""

    async def story(operator: SteppedOperator) -> None:
        await operator.api.create(queued(namespace))
        await reconcile_times(operator)
        await change(operator, WORKLOAD, metadata={"finalizers": ["kueue.x-k8s.io/resource-in-use"]})
        await answer(operator, "QuotaReserved", "Admitted")
        await change(operator, JOB, spec={"suspend": True})
        await reconcile_times(operator)
        (held,) = operator.cache.workloads((namespace, "ppo"))
        assert "deletionTimestamp" in held["metadata"]
        await change(operator, JOB, spec={"suspend": False})
        await reconcile_times(operator, 2)
        assert not await operator.names("Pod")
        await change(operator, WORKLOAD, metadata={"finalizers": None})
        await reconcile_times(operator)
        assert (await read_workload(operator))["metadata"]["uid"] != held["metadata"]["uid"]

    operators(story)
