"""Faults on real pods: signals to a container's first process, the Eviction API, a node without power, a drain."""

import json
import subprocess
import threading
from pathlib import Path

from tests.cluster.down import kill, processes
from tests.cluster.node import Place
from tests.cluster.up import join
from tests.support.kubernetes.kube import KubectlError, eventually, get, kubectl

TOLERATED_SECONDS, GRACE_SECONDS = 20, 30
"""Of a job's pods on a node that is gone: until Kubernetes deletes them (300 unless the manifest says otherwise), and
the grace of its trainer (300 too)."""
DRAIN_SECONDS = 180
_NOTICED_SECONDS, _GIVEN_UP_SECONDS = 120, 360


def first_process(uid: str) -> int:
    """Of the pod's container, by its control group, which has the pod's uid in its name.

    Raises:
        LookupError: there is not exactly one.
    """
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            groups, status = (folder / "cgroup").read_text(), (folder / "status").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        inner = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), "")
        if f"pod{uid}/" in groups and inner == "1" and command != b"/pause\0":
            pids.append(int(folder.name))
    if len(pids) != 1:
        raise LookupError(f"{len(pids)} first processes of pod {uid}")
    return pids[0]


def evict(kubeconfig: Path, namespace: str, pod: str) -> None:
    """Through the Eviction API, as `kubectl drain` does it."""
    body = {
        "apiVersion": "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    kubectl(kubeconfig, "create", "--raw", path, "-f", "-", input=json.dumps(body))


def drain(kubeconfig: Path, node: str) -> threading.Thread:
    """`kubectl drain` of the pods of jobs, as far as it goes; the thread that waits for their end, then uncordons."""
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--pod-selector=rlhf.dev/job")

    def work() -> None:
        kubectl(kubeconfig, "drain", node, *flags, f"--timeout={DRAIN_SECONDS}s", timeout=DRAIN_SECONDS + 10)
        kubectl(kubeconfig, "uncordon", node)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def lose(place: Place) -> threading.Thread:
    """Power off: silence to whoever sends it something. The thread brings the machine back once Kubernetes has noticed
    and let go of its pods."""
    first = Place(place.first)
    _of_first(first, "ip", "route", "replace", "blackhole", place.pods)
    _of_first(first, "ip", "link", "delete", place.link)  # on a busy machine it outlives the dead by a minute
    kill(place)

    def come_back() -> None:
        eventually(lambda: not _ready(place), f"{place.name} is noticed to be gone", _NOTICED_SECONDS)
        eventually(lambda: not _pods_of_jobs(place), f"{place.name} is given up", _GIVEN_UP_SECONDS)
        join(first)

    thread = threading.Thread(target=come_back, daemon=True)
    thread.start()
    return thread


def _ready(place: Place) -> bool:
    conditions = get(place.kubeconfig, "node", place.name)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _pods_of_jobs(place: Place) -> list[str]:
    where = ("pods", "-A", "-l", "rlhf.dev/job", "--field-selector", f"spec.nodeName={place.name}")
    return [each["metadata"]["name"] for each in get(place.kubeconfig, *where)["items"]]


def _of_first(first: Place, *command: str) -> None:
    """Run in the network of the first node."""
    network = f"--net=/proc/{processes(first)[0]}/ns/net"
    subprocess.run(["nsenter", network, *command], check=True, timeout=30)


def cordon(kubeconfig: Path, *nodes: str) -> None:
    """These take no further pods; all others do."""
    for each in get(kubeconfig, "nodes")["items"]:
        name = each["metadata"]["name"]
        kubectl(kubeconfig, "cordon" if name in nodes else "uncordon", name)


def leader(kubeconfig: Path, namespace: str) -> str:
    """Name of the operator's pod that leads. Raises KubectlError where there is none."""
    holder = get(kubeconfig, "lease", "rlhf-operator", "-n", namespace)["spec"].get("holderIdentity") or ""
    if not holder:
        raise KubectlError("no operator leads")
    return holder.rpartition("_")[0]
