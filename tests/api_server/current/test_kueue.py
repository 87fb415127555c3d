"""The Workloads that the operator writes, on a current API server, by the types and rules that Kueue publishes for
them; Kueue's own part is played here."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.api_server.current.jobs import DEFINITIONS
from tests.api_server.current.server import APPLY, MERGE, Refused, Server
from tests.api_server.oldest.schedulers import KUEUE
from tests.support.kubernetes.kube import eventually
from tests.unit.api.manifests import document

from rlhf_api.manifest.load import from_cluster
from rlhf_api.spec import Spec
from rlhf_operator.cluster.act.kueue_client import priority_fields
from rlhf_operator.cluster.config.settings import Defaults
from rlhf_operator.cluster.objects.companions import owned
from rlhf_operator.cluster.objects.kueue import released, report, workload
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.job.names import QUEUE
from rlhf_operator.job.snapshot import Job

STAMP = "2026-01-01T00:00:00Z"
PATH = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads"
RESERVED = (
    "has({0}.status) && has({0}.status.conditions)"
    " && {0}.status.conditions.exists(c, c.type == 'QuotaReserved' && c.status == 'True')"
)
OLD, NEW = RESERVED.format("oldSelf"), RESERVED.format("self")
RULES = {
    "podSetAssignments must have the same number of podSets as the spec": f"!({NEW} && has(self.status.admission))"
    " || size(self.spec.podSets) == size(self.status.admission.podSetAssignments)",
    "priorityClassRef is immutable while quota is reserved": f"!({OLD})"
    " || has(oldSelf.spec.priorityClassRef) == has(self.spec.priorityClassRef)",
    "queueName is immutable while quota is reserved": f"!({OLD} && {NEW})"
    " || oldSelf.spec.queueName == self.spec.queueName",
    "priority is needed where priorityClassRef is set": "!has(self.spec.priorityClassRef) || has(self.spec.priority)",
    # These two are of Kueue's webhook.
    "podSets are immutable while quota is reserved": f"!({OLD} && {NEW})"
    " || size(oldSelf.spec.podSets) == size(self.spec.podSets) && self.spec.podSets.all(n,"
    " oldSelf.spec.podSets.exists(o, o.name == n.name && o.count == n.count))",
    "reclaimablePods cannot decrease while quota is reserved": f"!({OLD} && {NEW})"
    " || !has(oldSelf.status.reclaimablePods) || has(self.status.reclaimablePods)"
    " && oldSelf.status.reclaimablePods.all(o,"
    " self.status.reclaimablePods.exists(n, n.name == o.name && n.count >= o.count))",
}
LARGEST = (
    "spec.trainer.pods.template={metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}}",
    "spec.generator={replicas: 3, podsPerReplica: 2, tensorParallelSize: 2, pods: {gpu: {count: 1}, template: "
    "{metadata: {annotations: {kueue.x-k8s.io/podset-preferred-topology: block, "
    "kueue.x-k8s.io/podset-slice-required-topology: rack}}}}}",
)
FEWER_ROLES = ("spec.algorithm=sft", "spec.ppo={}")


@pytest.fixture(scope="module")
def kueue(modern: Server) -> Iterator[Server]:
    made = copy.deepcopy(KUEUE)
    made["metadata"]["annotations"] = {"api-approved.kubernetes.io": "https://example.org/1"}
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["x-kubernetes-validations"] = [
        {"rule": rule, "message": message} for message, rule in RULES.items()
    ]
    modern.call("POST", DEFINITIONS, made)

    def served() -> bool:
        with suppress(Refused):
            modern.call("GET", PATH)
            return True
        return False

    eventually(served, "Workloads are served")
    yield modern
    modern.call("DELETE", f"{DEFINITIONS}/{made['metadata']['name']}")


class Queued:
    """A job in a queue, and its Workload on the server."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.path = server, f"{PATH}/{name}"
        self.name = name

    def job(self, *overrides: str, queue: str = "research") -> tuple[Job, Spec]:
        body = document(*overrides)
        meta = {"name": self.name, "namespace": "team", "uid": "u", "labels": {QUEUE: queue}}
        body = {**body, "metadata": meta}
        return Job.of(body), from_cluster(body).spec

    def enter(self, *overrides: str, queue: str = "research", priority: str | None = None) -> None:
        """As the operator does: a forced server-side apply."""
        job, spec = self.job(*overrides, queue=queue)
        kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
        named = (
            priority_fields({**kind, "metadata": {"name": priority}, "value": 7}, None) if priority else None
        )
        body = owned(workload(job, Pinned.make(job.name, spec, Defaults(image="i")), named), job)
        query = "fieldManager=rlhf-operator&force=true&fieldValidation=Strict"
        self.server.call("PATCH", f"{self.path}?{query}", json.dumps(body), APPLY)

    def workload(self) -> dict[str, Any]:
        body: dict[str, Any] = self.server.call("GET", self.path).body
        return body

    def patch(self, patch: dict[str, Any] | None) -> None:
        assert patch is not None
        self.server.call("PATCH", f"{self.path}/status?fieldValidation=Strict", patch, MERGE)

    def answer(self, reason: str = "Test", **conditions: str) -> None:
        """As Kueue does."""
        before = {c["type"]: c for c in self.workload().get("status", {}).get("conditions", ())}
        changed = {
            kind: {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": "",
                "lastTransitionTime": STAMP,
            }
            for kind, status in conditions.items()
        }
        names = [each["name"] for each in self.workload()["spec"]["podSets"]]
        admission = {"clusterQueue": "all", "podSetAssignments": [{"name": name} for name in names]}
        status = {"conditions": [*(before | changed).values()]}
        self.patch({"status": status | ({"admission": admission} if "Admitted" in conditions else {})})

    def reason(self, kind: str) -> tuple[str, str]:
        condition = next(c for c in self.workload()["status"]["conditions"] if c["type"] == kind)
        return condition["status"], condition["reason"]


def test_what_the_operator_writes_in_the_life_of_a_workload_is_accepted(kueue: Server) -> None:
    queued = Queued(kueue, "life")
    queued.enter(*LARGEST, priority="urgent")
    made = queued.workload()
    assert [each["name"] for each in made["spec"]["podSets"]] == [
        "trainer",
        "generator",
        "reward",
        "reference",
    ]
    request = made["spec"]["podSets"][1]["topologyRequest"]
    assert (request["subGroupCount"], request["podSetSliceSize"]) == (3, 2)
    for spec in (
        FEWER_ROLES,
        ("spec.generator.replicas=3",),
    ):  # while it waits, it changes in place
        queued.enter(*spec)
        assert "priorityClassRef" not in queued.workload()["spec"]
    assert len(queued.workload()["spec"]["podSets"]) == 4
    queued.answer(QuotaReserved="True", Admitted="True")
    _, three = queued.job("spec.generator.replicas=3")
    for ready, reason in ((False, "WaitForStart"), (True, "Started"), (False, "WaitForRecovery")):
        queued.patch(report(queued.workload(), three, ready=ready, stamp=STAMP))
        assert queued.reason("PodsReady") == (str(ready), reason)
    for generators in (2, 1):
        _, spec = queued.job(f"spec.generator.replicas={generators}")
        queued.patch(report(queued.workload(), spec, ready=True, stamp=STAMP))
        assert queued.workload()["status"]["reclaimablePods"] == [
            {"name": "generator", "count": 3 - generators}
        ]
    queued.answer("Preempted", Evicted="True")
    queued.patch(released(queued.workload(), STAMP))
    assert not {"admission", "reclaimablePods"} & queued.workload()["status"].keys()
    queued.enter("spec.generator.replicas=1", queue="other")
    assert queued.workload()["spec"]["queueName"] == "other"


def test_what_kueue_forbids_is_refused_here_too(kueue: Server) -> None:
    queued = Queued(kueue, "refused")
    queued.enter()
    queued.answer(QuotaReserved="True", Admitted="True")
    with pytest.raises(Refused, match="queueName is immutable"):
        queued.enter(queue="other")
    with pytest.raises(Refused, match="podSets are immutable"):
        queued.enter("spec.generator.replicas=3")
    with pytest.raises(Refused, match="priorityClassRef is immutable"):
        queued.enter(priority="urgent")
