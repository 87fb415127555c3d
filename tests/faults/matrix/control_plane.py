"""Faults on what the job itself never talks to: the API server, etcd, and the operators' way to it."""

import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

import psutil
from tests.cluster.down import processes
from tests.cluster.node import API_PORT, Place
from tests.faults.matrix.cells import API_SERVER, ETCD, PAUSE_SECONDS
from tests.faults.matrix.inject import later

_NAMES = {API_SERVER: "kube-apiserver", ETCD: "etcd"}


def server(place: Place, victim: str) -> psutil.Process:
    """Its process on the cluster's first node, which starts it again. Raises LookupError where there is not exactly
    one."""
    children = []
    for child in [child for pid in processes(place) for child in psutil.Process(pid).children()]:
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if child.name() == _NAMES[victim]:
                children.append(child)
    if len(children) != 1:
        raise LookupError(f"{len(children)} processes {_NAMES[victim]}")
    return children[0]


def cut(place: Place, senders: Sequence[str]) -> threading.Thread:
    """Drops packets from pods of these addresses, all on the first node, to the API server, for PAUSE_SECONDS."""
    _lose(place, "--insert", senders)
    return later(PAUSE_SECONDS, lambda: _lose(place, "--delete", senders))


def _lose(place: Place, act: str, senders: Sequence[str]) -> None:
    network = f"--net=/proc/{processes(place)[0]}/ns/net"
    rule = ("-p", "tcp", "--dport", str(API_PORT), "-s", ",".join(senders), "-j", "DROP")
    command = ["nsenter", network, "iptables", "--wait", "30", act, "INPUT", *rule]
    subprocess.run(command, check=True, timeout=60)
