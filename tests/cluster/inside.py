"""The first process inside the cluster's namespaces: mounts, network, then every server. etcd and the API server are
started again where a signal has ended them, as a kubelet does it with static pods; else it ends when one of them does,
and the kernel ends everything with it.   python -m tests.cluster.inside STATE BINARIES FD_OF_THE_HOST'S_NETWORK [FIRST]

With FIRST, the state of a cluster that is up, this is its second node, and the "host" is its first one.
"""

import os
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.cluster import node, servers
from tests.cluster.node import Place

_ETCD_PORT, _PEER_PORT = 2379, 2380
_READY_S = 240
_STARTED_AGAIN = ("etcd", "apiserver")
# On a busy machine all tests on the cluster would wait for its control plane. Where nice may not do so, it says so.
_FIRST = ("nice", "-n", "-10")
# Settings of the whole machine that kubelet writes.
_TUNABLES = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)


def main(place: Place, binaries: Path, host: str) -> None:
    _mounts(place)
    _network(place, host)
    started = {"containerd": _start(place, "containerd", node.containerd(place))}
    if place.first is None:
        started |= _control_plane(place, binaries)
    for name, command in {
        "kubelet": node.kubelet(binaries, place),
        "proxy": node.proxy(binaries, place),
        "policies": node.policies(place),
    }.items():
        started[name] = _start(place, name, command)
    names = {process.pid: name for name, process in started.items()}
    while True:
        ended, status = os.wait()
        if (name := names.pop(ended, "")) in _STARTED_AGAIN and os.WIFSIGNALED(status):
            names[_start(place, name, started[name].args).pid] = name
        elif name:  # others are orphans of the containers, which end up here as with any first process
            sys.exit(f"{name} has ended; see {place.logs / name}.log")


def _control_plane(place: Place, binaries: Path) -> dict[str, subprocess.Popen]:
    files = place.files
    api = servers.apiserver(binaries, files, _ETCD_PORT, node.API_PORT, "0.0.0.0", place.address)
    started = {
        "etcd": _start(place, "etcd", [*_FIRST, *servers.etcd(place.state / "etcd", _ETCD_PORT, _PEER_PORT)]),
        "apiserver": _start(place, "apiserver", [*_FIRST, *api]),
    }
    _wait_for_api(place, started["apiserver"])
    dns = [sys.executable, "-m", "tests.cluster.dns", str(files / "dns.kubeconfig"), place.address]
    for name, command in {
        "controller-manager": servers.controller_manager(binaries, files),
        "scheduler": servers.scheduler(binaries, files),
        "dns": dns,
    }.items():
        started[name] = _start(place, name, [*_FIRST, *command])
    return started


def _mounts(place: Place) -> None:
    """Private copies of every path that kubelet, containerd and the network plugins have built in."""
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for name in ("lib", "log"):
        upper, work = Path(f"/run/{name}/upper"), Path(f"/run/{name}/work")
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/var/{name},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, f"/var/{name}")
    for path, inside in (("/var/log/pods", "pods"), ("/var/lib/kubelet", "kubelet-var")):
        Path(path).mkdir(exist_ok=True)
        (place.state / inside).mkdir(exist_ok=True)  # a machine that comes back
        _run("mount", "--bind", str(place.state / inside), path)
    for name in _TUNABLES:
        copy = place.state / "tunables" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(Path("/proc/sys", name).read_text())
        _run("mount", "--bind", str(copy), f"/proc/sys/{name}")


def _network(place: Place, host: str) -> None:
    """One cable to the host, and no other way out: what leaves for elsewhere is told so at once."""
    there = ("nsenter", f"--net={host}")
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", place.link, "netns", host)
    _run(*there, "ip", "address", "add", f"{place.host_address}/{place.subnet.prefixlen}", "dev", place.link)
    _run(*there, "ip", "link", "set", place.link, "up")
    _run("ip", "address", "add", f"{place.address}/{place.subnet.prefixlen}", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    # Services have no address on any link; without a route packets would not come as far as kube-proxy's rules.
    _run("ip", "link", "add", "services", "type", "bridge")
    _run("ip", "link", "set", "services", "up")
    _run("ip", "route", "add", servers.SERVICES, "dev", "services")
    _run("ip", "route", "add", "unreachable", "default", "metric", "4000")
    # Policies go by the addresses of pods, so only what leaves the pods' network gets the node's.
    leaves = ("-s", node.PODS, "!", "-d", node.PODS)
    _run("iptables", "-t", "nat", "-A", "POSTROUTING", *leaves, "-j", "MASQUERADE")
    if place.first is not None:
        first = Place(place.first)
        for there_of_first in (first.address, first.pods):
            _run("ip", "route", "add", there_of_first, "via", place.host_address)
        _run(*there, "ip", "route", "replace", place.pods, "via", place.address)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _start(place: Place, name: str, command: list[str]) -> subprocess.Popen:
    with (place.logs / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def _wait_for_api(place: Place, server: subprocess.Popen) -> None:
    context = ssl.create_default_context(cafile=place.files / "ca.crt")
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(f"https://127.0.0.1:{node.API_PORT}/readyz", context=context, timeout=2)
            return
        time.sleep(0.1)
    sys.exit(
        f"the API server has ended, or is not ready after {_READY_S} s; see {place.logs / 'apiserver.log'}"
    )


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=120, pass_fds=_FDS)


if __name__ == "__main__":
    _FDS = (int(sys.argv[3]),)
    place = Place(Path(sys.argv[1]), *map(Path, sys.argv[4:]))
    main(place, Path(sys.argv[2]), f"/proc/self/fd/{sys.argv[3]}")
