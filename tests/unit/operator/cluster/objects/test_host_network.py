"""Pods on their nodes' network: ports of their own, and names that exist there."""

import itertools

import pytest
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.world import TODAY, World

from rlhf_api.roles import UNTRUSTED, Role
from rlhf_operator.cluster.decide.pod_groups import group_pods, membership
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.job.ports import HOST_PORTS
from rlhf_operator.job.snapshot import Pod
from rlhf_operator.job.trimmed import trim

HOST_NETWORK = "spec.pods.template={spec: {hostNetwork: true}}"
ON_TWO_NODES = ("spec.trainer.replicas=2", "spec.generator.replicas=8")


def pod(role: Role, index: int = 0, *overrides: str, uid: str = "job-uid"):
    made = Pinned.make("job", job(*ON_TWO_NODES, *overrides).spec, TODAY)
    return build_pod(made, NewPod(role, index, attempt=1, resume=False), uid)


def ports(uid: str, *overrides: str) -> list[int]:
    """Of the container of every pod of the job, which has neither environments nor sandboxes."""
    roles = [role for role in Role if role not in UNTRUSTED]  # whose pods take no template of the job
    places = [(role, index) for role in roles for index in range(8 if role is Role.GENERATOR else 2)]
    containers = [pod(*place, *overrides, uid=uid)["spec"]["containers"][0] for place in places]
    return [port["containerPort"] for container in containers for port in container["ports"]]


def environment(body) -> dict[str, str]:
    return {e["name"]: e.get("value") for e in body["spec"]["containers"][0]["env"]}


def test_no_two_pods_of_a_job_want_the_same_port_of_a_node():
    assigned = ports("job-uid", HOST_NETWORK)
    assert len(set(assigned)) == len(assigned) == 15  # 14 pods, and the rendezvous of the trainers
    assert set(assigned) <= set(HOST_PORTS)
    assert assigned == ports("job-uid", HOST_NETWORK)


def test_jobs_of_one_name_in_two_namespaces_have_other_ports():
    jobs = [set(ports(uid, HOST_NETWORK)) for uid in ("0b7c", "1d2e", "2f40")]
    assert not any(one & other for one, other in itertools.combinations(jobs, 2))


def test_ports_stay_where_the_number_of_generators_changes():
    more = "spec.generator.replicas=64"
    for role, index in ((Role.GENERATOR, 1), (Role.REWARD, 0), (Role.TRAINER, 0)):
        assert pod(role, index, HOST_NETWORK, more)["spec"] == pod(role, index, HOST_NETWORK)["spec"]


def test_who_listens_is_asked_where_it_listens():
    for role in Role:
        body = pod(role, 0, HOST_NETWORK)
        container = body["spec"]["containers"][0]
        http = next(p["containerPort"] for p in container["ports"] if p["name"] == "http")
        assert environment(body)["RLHF_PORT"] == str(http)
        assert container["readinessProbe"]["httpGet"]["port"] == "http"


def test_trainers_meet_at_names_and_a_port_that_exist_on_the_nodes_network():
    first, second = (pod(Role.TRAINER, index, HOST_NETWORK)["spec"] for index in (0, 1))
    (rendezvous,) = (p["containerPort"] for p in first["containers"][0]["ports"] if p["name"] == "rendezvous")
    assert f"--master-addr $(RLHF_HOST) --master-port {rendezvous}" in " ".join(
        first["containers"][0]["command"]
    )
    assert f"--master-addr job-trainer-0.job-rlhf --master-port {rendezvous}" in " ".join(
        second["containers"][0]["command"]
    )
    for spec in (first, second):
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert spec["subdomain"] == "job-rlhf"


def test_a_role_alone_may_be_there():
    overrides = "spec.generator.pods.template={spec: {hostNetwork: true}}"
    assert ports("job-uid", overrides).count(8000) == 6
    assert "dnsPolicy" not in pod(Role.TRAINER, 0, overrides)["spec"]
    assert environment(pod(Role.GENERATOR, 1, overrides))["RLHF_PORT"] != "8000"


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_the_trainer_hears_of_everybodys_own_port(address):
    """The port in the pod itself: an earlier release may have created it with another one."""
    world = World((HOST_NETWORK,))
    world.settle()
    for name, port in (("job-generator-0", 20111), ("job-reward-0", 20222)):
        world.pods[name]["spec"] |= {
            "containers": [{"name": "role", "ports": [{"name": "http", "containerPort": port}]}]
        }
        world.pods[name]["status"]["podIP"] = address
    world.pods["job-reference-0"]["spec"]["containers"] = [{"name": "role"}]
    pods = [Pod.of(trim(body)) for body in world.pods.values()]
    members = membership(group_pods(job().spec, world.status.cluster, pods), job().spec).members
    host = f"[{address}]" if ":" in address else address
    addresses = {member.name: member.address for member in members}
    assert addresses["generator-0"] == f"http://{host}:20111"
    assert addresses["reward-0"] == f"http://{host}:20222"
    assert addresses["reference-0"].endswith(":8000")
