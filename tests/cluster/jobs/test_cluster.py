"""The cluster and the images themselves, before anything of ours runs on them."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cluster import images
from tests.cluster.down import down
from tests.cluster.jobs.visitors import REACHED, READY_S, REJECTED, output, pod, tried, visit
from tests.cluster.node import Place
from tests.cluster.servers import API_SERVICE
from tests.cluster.up import up
from tests.faults.matrix.cells import API_SERVER, ETCD
from tests.faults.matrix.control_plane import server
from tests.support.kubernetes.cluster import Cluster, existing
from tests.support.kubernetes.kube import eventually, get, kubectl

SEAWEEDFS = Path(images.__file__).with_name("seaweedfs.yaml")
READY = ("--for=condition=Ready", "--timeout=240s")


def policy(app: str, **spec: object) -> dict:
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": app}}
    return {**head, "spec": {"podSelector": {"matchLabels": {"app": app}}, **spec}}


FRIENDS = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": "http"}]}
POLICIES = [
    policy("web", policyTypes=["Ingress"], ingress=[FRIENDS]),
    policy("prisoner", policyTypes=["Egress"]),
]


def test_pods_find_each_other_by_name_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    web = pod(
        "web", images.OPERATOR, "python3", "-m", "http.server", "8000", hostname="web-0", subdomain="all"
    )
    services = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 8000}], **spec},
        }
        for name, spec in {"one": {}, "all": {"clusterIP": "None"}}.items()
    ]
    content = {"apiVersion": "v1", "kind": "List", "items": [web, *services]}
    kubectl(cluster.kubeconfig, "apply", "-n", namespace, "-f", "-", input=json.dumps(content))
    kubectl(cluster.kubeconfig, "wait", "pod/web", "-n", namespace, *READY)
    script = f"""
import time, urllib.request
def reach(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status
    except OSError as error:
        return error
for host in ("one", "all", "web-0.all", "one.{namespace}.svc.cluster.local"):
    deadline = time.monotonic() + 30  # kube-proxy learns of a service a moment later
    while reach(f"http://{{host}}:8000/") != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    print(host, reach(f"http://{{host}}:8000/"))
begin = time.monotonic()
print(reach("http://192.0.2.1/"), time.monotonic() - begin < 3)
"""
    looking = pod("look", images.OPERATOR, "python3", "-c", script)
    lines = output(cluster.kubeconfig, namespace, looking).splitlines()
    assert [line.split()[-1] for line in lines[:-1]] == ["200"] * 4, lines
    if existing() is None:
        assert lines[-1].endswith("No route to host> True")
    user = kubectl(cluster.kubeconfig, "exec", "web", "-n", namespace, "--", "id", "-u")
    assert user.strip() == "65532"


def test_what_no_network_policy_admits_is_rejected(cluster: Cluster, namespace: str) -> None:
    if existing() is not None:
        pytest.skip("a named cluster may enforce nothing: unset RLHF_TEST_KUBECONFIG")
    serve = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=8000)"
    web = pod("web", images.OPERATOR, "python3", "-c", serve)
    web["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": 8000}]
    content = {"apiVersion": "v1", "kind": "List", "items": [*POLICIES, web]}
    kubectl(cluster.kubeconfig, "apply", "-n", namespace, "-f", "-", input=json.dumps(content))
    kubectl(cluster.kubeconfig, "wait", "pod/web", "-n", namespace, *READY)
    address = get(cluster.kubeconfig, "pod", "web", "-n", namespace)["status"]["podIP"]
    ends = [(address, 8000), (address, 8001), (API_SERVICE, 443)]
    for name, outcomes in {
        "friend": [REACHED, REJECTED, REACHED],
        "stranger": [REJECTED, REJECTED, REACHED],
        "prisoner": [REJECTED, REJECTED, REJECTED],
    }.items():
        visit(cluster.kubeconfig, namespace, name)
        # Its address is known a moment after its start.
        eventually(
            lambda name=name, outcomes=outcomes: tried(cluster.kubeconfig, namespace, name, ends) == outcomes,
            f"what {name} reaches is {outcomes}",
            READY_S,
        )


@pytest.mark.parametrize(
    ("image", "modules"),
    [
        (images.OPERATOR, "rlhf_operator.cli, kopf"),
        (images.TRAINER, "rlhf_trainer.transport.wire, deepspeed, vllm.config"),
    ],
)
def test_an_image_works_under_the_restricted_standard(
    cluster: Cluster, namespace: str, image: str, modules: str
) -> None:
    code = f"import getpass, os, {modules}; print(getpass.getuser(), os.getuid(), os.access('/', os.W_OK))"
    output_lines = output(
        cluster.kubeconfig, namespace, pod("imports", image, "python3", "-c", code)
    ).splitlines()
    assert output_lines[-1] == "rlhf 65532 False"


def test_the_store_takes_an_object_once(cluster: Cluster, namespace: str) -> None:
    kubectl(cluster.kubeconfig, "apply", "-n", namespace, "-f", str(SEAWEEDFS))
    kubectl(cluster.kubeconfig, "wait", "pod/seaweedfs", "-n", namespace, *READY)
    code = """
import obstore
from obstore.store import from_url
store = from_url("s3://checkpoints/test")
obstore.put(store, "a", b"first", mode="create")
try:
    obstore.put(store, "a", b"second", mode="create")
except obstore.exceptions.AlreadyExistsError:
    print(obstore.get(store, "a").bytes().to_bytes().decode())
"""
    content = output(cluster.kubeconfig, namespace, pod("put", images.TRAINER, "python3", "-c", code))
    assert content.strip() == "first"


@pytest.mark.parametrize("victim", [API_SERVER, ETCD])
def test_a_control_plane_s_server_that_is_killed_is_started_again(
    cluster: Cluster, namespace: str, victim: str
) -> None:
    if existing() is not None:
        pytest.skip("kills a server of a cluster on this machine: unset RLHF_TEST_KUBECONFIG")
    place = Place(cluster.kubeconfig.parents[1])
    killed = server(place, victim)
    killed.kill()

    def another() -> bool:
        with suppress(LookupError):
            return server(place, victim) != killed
        return False

    eventually(another, f"another {victim}", READY_S)
    # Reads come from etcd.
    eventually(lambda: get(cluster.kubeconfig, "namespace", namespace), f"what {victim} held", READY_S)


def test_a_cluster_leaves_no_trace_on_the_machine(cluster: Cluster, tmp_path: Path) -> None:
    if existing() is not None:
        pytest.skip("brings a second cluster up on this machine: unset RLHF_TEST_KUBECONFIG")
    place = Place(tmp_path / "second")
    before = traces()
    try:
        assert up(place)
        assert not up(place), "one that is well is left as it is"
        assert traces() != before
    finally:
        down(place)
    assert traces() == before
    assert not place.state.exists()
    # The other one goes on.
    assert "node1" in kubectl(cluster.kubeconfig, "get", "nodes")


def traces() -> dict[str, list[str]]:
    """Lists what a cluster may leave behind: mounts, links, routes, control groups, folders, and the machine's
    settings."""
    commands = {
        "mounts": ["cat", "/proc/self/mounts"],
        "links": ["ip", "-o", "link"],
        "routes": ["ip", "route"],
        "rules": ["ip", "rule"],
        "settings": [
            "sh",
            "-c",
            "sysctl -n vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops",
        ],
        "groups": ["find", "/sys/fs/cgroup", "-maxdepth", "2", "-name", "rlhf-*"],
        "folders": ["find", "/var/lib", "/var/log", "/run", "-maxdepth", "1"],
    }
    return {
        what: sorted(
            subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=30
            ).stdout.splitlines()
        )
        for what, command in commands.items()
    }
