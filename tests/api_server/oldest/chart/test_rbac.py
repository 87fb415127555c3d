"""The chart's rights and what the operator does with them: none is missing, and none is left over."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api_server.oldest.jobs import ADDRESS, ROOT, ppo
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.fake_nodes import FakeNodes
from tests.support.kubernetes.helm import CHART, helm
from tests.support.kubernetes.kube import KubectlError, eventually, kubectl, new_namespace
from tests.support.kubernetes.operator import Jobs, Operator, operator, talking_trainer
from tests.support.servers.proxy import Proxy, proxied

from rlhf_api.contract.run import EXIT_SUSPENDED

ELSEWHERE = {
    # Other projects' kinds, as far as this needs them.
    "scheduling.volcano.sh": ("v1beta1", "PodGroup"),
    "scheduling.x-k8s.io": ("v1alpha1", "PodGroup"),
    "kueue.x-k8s.io": ("v1beta2", "Workload"),
}
GANGS = {"volcano": "scheduling.volcano.sh", "coscheduling": "scheduling.x-k8s.io"}
VERBS = {
    "POST": {"create"},
    "PUT": {"update"},
    "DELETE": {"delete"},
    "WATCH": {"watch"},
    # Server-side apply: the API server asks for both where the object is new.
    "PATCH": {"create", "patch"},
}
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/[^/]+)?/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)

ADMITTED = ("QuotaReserved", "Admitted")
Right = tuple[str, str, str]
"""Group, resource, verb."""
OF_NEWER = {("resource.k8s.io", "resourceclaims", "get")} | {
    ("resource.k8s.io", "resourceclaimtemplates", verb) for verb in ("list", "create", "patch")
}
"""For pods of Kubernetes 1.34 or newer: this server knows no claims of pods."""


def definition(group: str) -> dict[str, Any]:
    version, kind = ELSEWHERE[group]
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # What the API server asks for where a name ends in k8s.io.
            "annotations": {"api-approved.kubernetes.io": "https://example.org/1"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


@pytest.fixture
def elsewhere(control_plane: Cluster) -> Iterator[None]:
    """Volcano, coscheduling and Kueue, as far as the API server knows."""
    admin, made = control_plane.kubeconfig, []
    for group in ELSEWHERE:
        body = definition(group)
        name = body["metadata"]["name"]
        if kubectl(admin, "get", "crd", name, "--ignore-not-found") == "":
            kubectl(admin, "create", "--filename=-", input=yaml.safe_dump(body))
            made.append(name)
        kubectl(admin, "wait", "--for=condition=Established", f"crd/{name}")
    yield
    for name in made:
        kubectl(admin, "delete", "crd", name)


@pytest.fixture
def another(control_plane: Cluster) -> Iterator[str]:
    """A second namespace that the operator serves."""
    with new_namespace(control_plane.kubeconfig) as name:
        yield name


@pytest.fixture
def account(
    control_plane: Cluster, namespace: str, another: str, tmp_path: Path
) -> Iterator[tuple[Proxy, Path]]:
    """The operator's ServiceAccount as the chart makes it, through a proxy that writes down what it does."""
    admin = control_plane.kubeconfig
    values = "fullnameOverride=operator,replicaCount=0,crds.install=false"
    both = (f"--set={values}", f"--set=watchNamespaces={{{namespace},{another}}}")
    helm("install", namespace, str(CHART), f"--namespace={namespace}", *both, kubeconfig=admin)
    token = kubectl(admin, "create", "token", "operator", f"--namespace={namespace}").strip()
    try:
        with proxied(control_plane, tmp_path) as (proxy, kubeconfig):
            document = yaml.safe_load(kubeconfig.read_text())
            document["users"][0]["user"]["token"] = token
            kubeconfig.write_text(yaml.safe_dump(document))
            yield proxy, kubeconfig
    finally:
        helm("uninstall", namespace, f"--namespace={namespace}", kubeconfig=admin)


NOT_SERVED = "scheduling.k8s.io"
"""Whose gangs this API server is too old for."""


def granted(namespace: str) -> set[Right]:
    where = f"--namespace={namespace}"
    command = ("template", namespace, str(CHART), where, f"--set=watchNamespaces={{{namespace}}}")
    objects = yaml.safe_load_all(helm(*command, "--show-only=templates/rbac.yaml"))
    return {
        (group, resource, verb)
        for role in objects
        if role["kind"] == "Role"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        if group != NOT_SERVED
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(requests: list[str]) -> set[Right]:
    rights = set[Right]()
    for request in requests:
        method, path = request.split()
        if match := PATH.fullmatch(path):
            resource, subresource = match["resource"], match["subresource"]
            verbs = VERBS.get(method) or ({"get"} if match["name"] else {"list"})
            if subresource:
                resource, verbs = f"{resource}/{subresource}", verbs - {"create"}
            rights |= {(match["group"] or "", resource, verb) for verb in verbs}
    return rights


def answers(running: Operator) -> set[str]:
    """The codes that the API server answered the operator with."""
    with urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}/metrics", timeout=10) as page:
        return set(re.findall(r'rlhf_operator_api_calls_total\{code="(\d+)"', page.read().decode()))


def one_pod(name: str, **spec: Any) -> dict[str, Any]:
    """A job with a trainer and nothing else."""
    job = yaml.safe_load((ROOT / "examples" / "sentiment" / "sft.yaml").read_text())
    return {**job, "metadata": {"name": name}, "spec": {**job["spec"], **spec}}


def waits_for_its_runtime(jobs: Jobs) -> None:
    """A job that names a runtime has no pods until it comes, and its outcome then."""
    jobs.apply(one_pod("named", runtime={"name": "small", "kind": "RLHFRuntime"}))
    eventually(lambda: jobs.reason("named", "Suspended") == "RuntimeNotFound", "the job waits")
    assert "named-trainer-0" not in jobs.pods()
    kind = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFRuntime", "metadata": {"name": "small"}}
    jobs.kubectl("create", "-f", "-", input=json.dumps({**kind, "spec": {"pods": {"image": "admin:1"}}}))
    assert "admin:1" in jobs.kubectl("get", "rlhfruntimes")
    eventually(lambda: jobs.pods().get("named-trainer-0"), "the runtime has come")
    pod = jobs.get("pod", "named-trainer-0")
    assert pod["spec"]["containers"][0]["image"] == "admin:1"
    assert jobs.status("named")["runtime"] == {"kind": "RLHFRuntime", "name": "small", "generation": 1}
    jobs.kubectl("delete", "rlhfjob", "named")


def lacks_a_secret(jobs: Jobs) -> None:
    """A job whose pod gets a node that cannot start it: only the pod's events tell why."""
    # Pods of a node that is not there are deleted after 40 s, by their garbage collector.
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "of-paper"}}
    jobs.kubectl("create", "-f", "-", input=json.dumps(node))
    jobs.apply(one_pod("unstarted", pods={"nodeSelector": {"no": "node"}}))
    eventually(lambda: jobs.pods().get("unstarted-trainer-0"), "its pod is made")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "unstarted-trainer-0"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "of-paper"},
    }
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/unstarted-trainer-0/binding"
    jobs.kubectl("create", f"--raw={path}", "-f", "-", input=json.dumps(body))
    meta = jobs.get("pod", "unstarted-trainer-0")["metadata"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "no-secret"},
        "involvedObject": {"kind": "Pod", **{key: meta[key] for key in ("name", "namespace", "uid")}},
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'secret "keys" not found',
        "lastTimestamp": "2100-01-01T00:00:00Z",
    }
    jobs.kubectl("create", "-f", "-", input=json.dumps(event))
    eventually(lambda: jobs.reason("unstarted", "Stalled") == "FailedMount", "its job tells")
    jobs.kubectl("delete", "rlhfjob", "unstarted")
    jobs.kubectl("delete", "node", "of-paper")


def gangs_are_listed(jobs: Jobs, requests: list[str]) -> None:
    """As other companions, in the first of the listings that come every two minutes."""
    for gang, group in GANGS.items():
        listing = re.compile(rf"GET /apis/{re.escape(group)}/.*/podgroups")
        eventually(
            lambda listing=listing: any(map(listing.fullmatch, requests)), f"{gang}'s groups are listed", 240
        )
        assert f"{gang}-trainer-0" in jobs.pods()
        jobs.kubectl("delete", "rlhfjob", gang)


def ends_a_shared_pod(jobs: Jobs, nodes: FakeNodes) -> None:
    """A job in one pod, whose servers would go on once its trainer has ended."""
    jobs.apply({**ppo(placement="shared"), "metadata": {"name": "shared"}})
    jobs.until("shared", "Running")
    nodes.end(jobs.namespace, "shared-trainer-0", 0)
    jobs.until("shared", "Succeeded")
    pod = ("pod", "shared-trainer-0")
    eventually(lambda: "activeDeadlineSeconds" in jobs.get(*pod)["spec"], "its servers are ended")
    jobs.kubectl("delete", "rlhfjob", "shared")


def a_full_life(jobs: Jobs, nodes: FakeNodes) -> None:
    """Everything that the operator does for jobs: queues, scaling, a changed spec, suspension, time to live."""
    queued = one_pod("queued")
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    jobs.apply(queued)
    workload = "workloads.kueue.x-k8s.io"
    eventually(lambda: jobs.get(workload)["items"], "the job lines up")
    admitted = {"type": "Admitted", "status": "True", "reason": "Admitted", "message": ""}
    made = json.dumps({"status": {"conditions": [admitted]}})
    jobs.kubectl("patch", workload, "queued", "--subresource=status", "--type=merge", "-p", made)
    eventually(lambda: "PodsReady" in json.dumps(jobs.get(workload, "queued")), "Kueue hears of its pods")
    jobs.until("queued", "Running")
    jobs.patch("queued", suspend=True)
    nodes.end(jobs.namespace, "queued-trainer-0", EXIT_SUSPENDED)
    eventually(lambda: not jobs.get("workloads.kueue.x-k8s.io")["items"], "the job leaves the queue")

    jobs.kubectl("run", "taken-trainer-0", "--image=somebody-elses")
    jobs.apply(one_pod("taken"))
    eventually(lambda: "exists already" in jobs.status("taken").get("message", ""), "the name is taken")
    jobs.kubectl("delete", "pod", "taken-trainer-0", "--grace-period=0", "--force")
    eventually(lambda: jobs.pods().get("taken-trainer-0"), "the name is free")

    jobs.apply(ppo(generator={"autoscale": {"minReplicas": 2, "maxReplicas": 2}}))
    jobs.until("ppo", "Running")
    eventually(lambda: "ppo-generator-1" in jobs.pods(), "one generator more")
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=1")
    eventually(lambda: jobs.get("rlhfjob", "ppo")["spec"]["generator"]["replicas"] == 2, "it is taken back")
    jobs.patch("ppo", suspend=True)
    jobs.patch("ppo", ppo={"klCoefficient": 0.5})  # while the pods still run what was before
    eventually(lambda: jobs.reason("ppo", "SpecChanged"), "the change is seen")
    nodes.end(jobs.namespace, "ppo-trainer-0", EXIT_SUSPENDED)
    jobs.until("ppo", "Suspended")
    jobs.patch("ppo", suspend=False, ttlSecondsAfterFinished=1)
    jobs.until("ppo", "Running")
    nodes.end(jobs.namespace, "ppo-trainer-0", 0)
    left = ("rlhfjobs", "--field-selector=metadata.name=ppo")
    eventually(lambda: not jobs.get(*left)["items"], "its time is over")


def waits_for_what_is_in_no_namespace(jobs: Jobs) -> None:
    """Priority classes and resource flavors are the whole cluster's. Without a flavor's node labels the pods might run
    on other nodes than their quota is for."""

    def waiting_message(name: str) -> str:
        conditions = (c for c in jobs.status(name).get("conditions", ()) if c["type"] == "PodsScheduled")
        return next((c["message"] for c in conditions if c["status"] == "False"), "")

    priority = {"kueue.x-k8s.io/priority-class": "urgent"}
    for name, labels in (("urgent", priority), ("flavored", {})):
        job = one_pod(name)
        job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team", **labels}
        jobs.apply(job)
    eventually(
        lambda: "rbac.clusterReads" in waiting_message("urgent"),
        "it tells what gives the right that it lacks",
    )
    assert "workloadpriorityclasses" in waiting_message("urgent")
    workload = ("workloads.kueue.x-k8s.io", "flavored")
    eventually(lambda: jobs.get("workloads.kueue.x-k8s.io")["items"], "this one lines up")
    held = [{"type": kind, "status": "True", "reason": "Test", "message": ""} for kind in ADMITTED]
    assigned = [{"name": "trainer", "count": 1, "flavors": {"cpu": "h100"}}]
    answer = {"conditions": held, "admission": {"clusterQueue": "all", "podSetAssignments": assigned}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": answer}))
    jobs.kubectl("patch", *workload, *patch)
    eventually(lambda: "rbac.clusterReads" in waiting_message("flavored"), "and waits for its flavor")
    assert "resourceflavors" in waiting_message("flavored")
    assert not {"urgent-trainer-0", "flavored-trainer-0"} & set(jobs.pods())


@pytest.mark.usefixtures("crd", "elsewhere")
def test_every_right_is_used_and_none_is_missing(control_plane, namespace, another, account, tmp_path):
    proxy, kubeconfig = account
    jobs, theirs = Jobs(control_plane.kubeconfig, namespace), Jobs(control_plane.kubeconfig, another)
    nobodys = Jobs(control_plane.kubeconfig, "kube-public")
    nobodys.apply(one_pod("unseen"))
    wide = ("get", "pods", "--all-namespaces", f"--as=system:serviceaccount:{namespace}:operator")
    with pytest.raises(KubectlError, match="cannot list resource"):
        kubectl(control_plane.kubeconfig, *wide)
    for gang in GANGS:  # several trainers meet by a Service
        jobs.apply(one_pod(gang, scheduling={"gang": gang}, trainer={"replicas": 2}))
    with (
        FakeNodes(control_plane, address=ADDRESS) as nodes,
        talking_trainer(),
        operator(
            kubeconfig, tmp_path / "operator", namespace, RLHF_NAMESPACES=f"{namespace},{another}"
        ) as running,
    ):
        theirs.apply(one_pod("theirs"))
        theirs.until("theirs", "Running")
        waits_for_its_runtime(jobs)
        lacks_a_secret(jobs)
        gangs_are_listed(jobs, proxy.requests)
        ends_a_shared_pod(jobs, nodes)
        a_full_life(jobs, nodes)
        assert "403" not in answers(running)
        done = used(proxy.requests)
        waits_for_what_is_in_no_namespace(jobs)
        assert running.stop() == 0  # gives its Lease back
    assert nobodys.status("unseen") == {}
    nobodys.kubectl("delete", "rlhfjob", "unseen")
    assert done == granted(namespace) - OF_NEWER
