"""Brings a cluster up, with one node or two: a real Kubernetes, each node in network, mount and process namespaces of
its own."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from dnslib import DNSRecord
from tests.cluster import credentials, node, pause, servers
from tests.cluster.binaries import binaries
from tests.cluster.down import claim, down, processes, running
from tests.cluster.node import Place
from tests.cluster.packages import CONTROL_PLANE, NODE, Unavailable, require, require_root
from tests.support.kubernetes.kube import KubectlError, eventually, kubectl

_READY_S = 240
_GROUPS = Path("/sys/fs/cgroup")
_SHARES = 6 * 1024
_ROOT = Path(__file__).parents[2]


def up(place: Place) -> bool:
    """Returns whether it had to be started: one that is up and well is left as it is.

    Raises:
        Unavailable: this machine cannot have one.
    """
    if running(place) and _well(place):
        return False
    require_root()
    if not (_GROUPS / "cpuset").is_dir():
        raise Unavailable(
            "the test cluster needs control groups of version 1: set RLHF_TEST_KUBECONFIG to a cluster"
        )
    hidden = next(
        (path for path in ("/run", "/var/lib", "/var/log") if place.state.is_relative_to(path)), None
    )
    if hidden:
        raise Unavailable(f"the test cluster has a {hidden} of its own: name another folder with --state")
    require((*CONTROL_PLANE, *NODE))
    programs = binaries()
    down(place)
    claim(place)
    addresses = ("127.0.0.1", place.address, servers.API_SERVICE)
    credentials.make(place.files, f"https://{place.address}:{node.API_PORT}", addresses)
    node.write_files(place)
    _make_groups(place)
    first = _start(place, programs)
    try:
        eventually(lambda: _alive(place, first) and _well(place), "the node's readiness", _READY_S)
        _load_pause(place, programs)
        kubectl(place.kubeconfig, "apply", "-f", "-", input=json.dumps(_dns_service(place)))
        eventually(lambda: _alive(place, first) and _resolves(place), "the cluster's DNS", _READY_S)
    except BaseException:
        _keep_logs(place)
        down(place)
        raise
    return True


def join(first: Place) -> Place:
    """The second node of a cluster that is up: made, or, once its loss after `down.kill` was noticed, brought back with
    the images it had; returns when it is ready."""
    place, programs = first.second, binaries()
    fresh = not place.state.exists()
    if fresh:
        claim(place)
        place.files.mkdir()
        for ours, name in {"kubelet2": "kubelet", "proxy": "proxy", "admin": "admin"}.items():
            shutil.copy(first.files / f"{ours}.kubeconfig", place.files / f"{name}.kubeconfig")
        node.write_files(place)
        _make_groups(place)
    shutil.rmtree(place.state / "containerd" / "state", ignore_errors=True)
    began = _start(place, programs)
    eventually(lambda: _alive(place, began) and _well(place), "the second node's readiness", _READY_S)
    if fresh:
        _load_pause(place, programs)
    return place


def _load_pause(place: Place, programs: Path) -> None:
    image = pause.archive(node.PAUSE, programs / "pause")
    command = ["ctr", "--address", str(place.containerd), "--namespace", "k8s.io", "images", "import", "-"]
    subprocess.run(command, input=image, capture_output=True, timeout=240, check=True)


def _make_groups(place: Place) -> None:
    for hierarchy in _GROUPS.iterdir():
        if hierarchy.is_dir() and not hierarchy.is_symlink():
            (hierarchy / place.cgroup).mkdir()
    # This one begins with no processor and no memory.
    for name in ("cpuset.cpus", "cpuset.mems"):
        (_GROUPS / "cpuset" / place.cgroup / name).write_text((_GROUPS / "cpuset" / name).read_text())
    # A node's pods, kubelet and servers share one group. With the share of a single process, which is the default, they
    # would starve beside whatever else this machine runs.
    (_GROUPS / "cpu" / place.cgroup / "cpu.shares").write_text(str(_SHARES))


def _start(place: Place, programs: Path) -> subprocess.Popen[bytes]:
    if place.first is None:
        # While the cable is not there, what is meant for the node must not leave through another one.
        route = ["ip", "route", "add", "unreachable", str(place.subnet), "metric", "4000"]
        subprocess.run(route, check=True, timeout=120)
    first = () if place.first is None else (str(place.first),)
    other_end = processes(Place(place.first))[0] if place.first else "self"
    host = os.open(f"/proc/{other_end}/ns/net", os.O_RDONLY)
    namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
    inside = (
        sys.executable,
        "-m",
        "tests.cluster.inside",
        str(place.state),
        str(programs),
        str(host),
        *first,
    )
    with (place.logs / "inside.log").open("ab") as log:
        process = subprocess.Popen(
            ["unshare", *namespaces, "--propagation", "private", *inside],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[host],
            start_new_session=True,
        )
    os.close(host)
    return process


def _alive(place: Place, first: subprocess.Popen[bytes]) -> bool:
    if first.poll() is not None:
        raise RuntimeError(f"the cluster ended: {(place.logs / 'inside.log').read_text()[-2000:]}")
    return True


def _well(place: Place) -> bool:
    condition = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    try:
        return kubectl(place.kubeconfig, "get", "node", place.name, "-o", condition, timeout=20) == "True"
    except KubectlError:
        return False


def _resolves(place: Place) -> bool:
    question = DNSRecord.question("kubernetes.default.svc.cluster.local")
    try:
        return bool(DNSRecord.parse(question.send(place.address, 53, timeout=2)).rr)
    except OSError:
        return False


def _dns_service(place: Place) -> dict:
    """The usual address of DNS in front of the process that answers on the node."""
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": node.DNS_SERVICE, "ports": ports},
    }
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": metadata,
        "subsets": [{"addresses": [{"ip": place.address}], "ports": ports}],
    }
    return {"apiVersion": "v1", "kind": "List", "items": [service, endpoints]}


def _keep_logs(place: Place) -> None:
    copied = place.state.with_name(f"{place.state.name}-logs-{int(time.time())}")
    shutil.copytree(place.logs, copied)
    print(f"the cluster did not come up; its logs are in {copied}", file=sys.stderr)
