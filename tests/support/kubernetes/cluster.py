"""Kubernetes for tests: one that runs already, or a control plane (no node) as plain processes on loopback."""

import base64
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.cluster import credentials, servers
from tests.cluster.binaries import binaries
from tests.cluster.packages import CONTROL_PLANE, require
from tests.support.kubernetes.kube import eventually, kubectl
from tests.support.processes import STOP_S, Processes, processes

from rlhf_operator.local.resources.ports import HOST, assign


@dataclass(frozen=True)
class Cluster:
    """Address and files of a cluster, with the credentials of its administrator."""

    kubeconfig: Path
    own: bool = field(default=False, kw_only=True)
    """These tests made it, and take it down as a whole."""

    @property
    def server(self) -> str:
        return self._view["clusters"][0]["cluster"]["server"]

    @property
    def token(self) -> str:
        """Empty where its administrator uses something else."""
        return self._view["users"][0]["user"].get("token", "")

    @property
    def ca(self) -> str:
        """The certificate authority of its server, as PEM."""
        return base64.b64decode(self._view["clusters"][0]["cluster"]["certificate-authority-data"]).decode()

    @cached_property
    def _view(self) -> dict:
        arguments = ("config", "view", "--raw", "--minify", "--flatten", "--output=json")
        return json.loads(kubectl(self.kubeconfig, *arguments))


def existing() -> Cluster | None:
    """The cluster that the user names for tests, if any; never the one that kubectl happens to use."""
    named = os.environ.get("RLHF_TEST_KUBECONFIG")
    return Cluster(Path(named)) if named else None


@dataclass(frozen=True)
class ControlPlane(Cluster):
    """etcd, the API server and the controller manager, of these tests alone."""

    folder: Path
    binaries: Path
    _apiserver_command: list[str]
    _controller_manager_command: list[str]
    _processes: Processes

    def start_apiserver(self) -> None:
        """On the port that it has always had; returns when it answers."""
        self._processes.launch("apiserver", self._apiserver_command)
        self.wait_ready()  # the controller manager gives up after ten seconds without
        self._processes.launch("controller-manager", self._controller_manager_command)

    def stop_apiserver(self) -> None:
        """At once, as when its machine is gone: connections are cut, and new ones refused.

        The controller manager goes with it: one that stayed would look again only after up to a minute.
        """
        for name in ("controller-manager", "apiserver"):
            process = self._processes.running.pop(name)
            process.kill()
            process.wait(STOP_S)

    def signal_apiserver(self, number: signal.Signals) -> None:
        """SIGSTOP, for one that takes connections and never answers, until SIGCONT; returns when it has stopped."""
        server = self._processes.running["apiserver"]
        server.send_signal(number)
        if number == signal.SIGSTOP:
            # Until the last of its threads has stopped it may still answer; one that has ended never stops.
            os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait_ready(self) -> None:
        def ready() -> bool:
            self._processes.check()
            return kubectl(self.kubeconfig, "get", "--raw=/readyz", timeout=20) == "ok"

        eventually(ready, "the API server's readiness")


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """A new control plane with its state and logs in `folder`; ended afterwards, or when this process dies.

    Raises:
        Unavailable: this machine cannot have one.
    """
    programs = binaries()
    require(CONTROL_PLANE)
    port, etcd_port, peer_port = assign(["API server", "etcd", "etcd's peers"], None).values()
    files = folder / "files"
    credentials.make(files, f"https://{HOST}:{port}", (HOST, servers.API_SERVICE))
    command = servers.apiserver(programs, files, etcd_port, port, HOST, HOST)
    # No node, so nobody needs the address of the API server as a service; loopback is refused as one.
    command.append("--endpoint-reconciler-type=none")
    manager = servers.controller_manager(programs, files)
    with processes(folder) as made:
        plane = ControlPlane(files / "admin.kubeconfig", folder, programs, command, manager, made)
        made.launch("etcd", servers.etcd(folder / "etcd", etcd_port, peer_port))
        plane.start_apiserver()
        yield plane
