"""A node of the test cluster: where it lives on this machine, and its servers' files and command lines."""

import json
import sys
import zlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tests.cluster.credentials import NODE, SECOND

PODS = "10.244.0.0/16"
DNS_SERVICE = "10.96.0.10"
PAUSE = "localhost/pause:1"
API_PORT = 6443


@dataclass(frozen=True)
class Place:
    """A cluster's folder, and the names and addresses on the host that follow from it: four addresses of 10.77.0.0/16,
    so that two folders hardly ever share them (with 254 subnets, a run of CI in a hundred had two clusters in one).

    With `first`, the folder of a cluster that is up, a second node of it: a machine of its own at a cable to the first.
    """

    state: Path
    first: Path | None = None

    @property
    def second(self) -> "Place":
        """The second node of this cluster, whether it is there or not."""
        return Place(self.state.with_name(f"{self.state.name}-2"), first=self.state)

    @property
    def name(self) -> str:
        return SECOND if self.first else NODE

    @property
    def pods(self) -> str:
        """Addresses of its pods."""
        return f"10.244.{1 if self.first else 0}.0/24"

    @property
    def number(self) -> int:
        return zlib.crc32(str(self.state).encode()) % (1 << 14)

    @property
    def host_address(self) -> str:
        return str(self.subnet[1])

    @property
    def address(self) -> str:
        """Of the node, with everything on it; the host reaches nothing else of the cluster."""
        return str(self.subnet[2])

    @property
    def subnet(self) -> IPv4Network:
        return IPv4Network((IPv4Address("10.77.0.0") + 4 * self.number, 30))

    @property
    def link(self) -> str:
        """The host's end of the one cable to the node."""
        return f"rlhf{self.number}"

    @property
    def cgroup(self) -> str:
        return f"rlhf-{self.number}"

    @property
    def files(self) -> Path:
        return self.state / "files"

    @property
    def registries(self) -> Path:
        """A folder by the name of each registry that has a mirror, in which containerd looks at each pull."""
        return self.files / "registries"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.files / "admin.kubeconfig"

    @property
    def containerd(self) -> Path:
        return self.state / "containerd" / "containerd.sock"


def write_files(place: Place) -> None:
    """The configuration of kubelet, containerd and the pod network."""
    (place.files / "kubelet.json").write_text(json.dumps(_kubelet(place), indent=1))
    (place.files / "containerd.toml").write_text(_CONTAINERD.format(place=place, pause=PAUSE))
    (place.files / "cni").mkdir(exist_ok=True)
    (place.files / "cni" / "10-bridge.conflist").write_text(json.dumps(_network(place), indent=1))


def containerd(place: Place) -> list[str]:
    return ["containerd", "--config", str(place.files / "containerd.toml")]


def kubelet(binaries: Path, place: Place) -> list[str]:
    return [
        str(binaries / "kubelet"),
        *(f"--kubeconfig={place.files / 'kubelet.kubeconfig'}", f"--config={place.files / 'kubelet.json'}"),
        *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{place.containerd}"),
        *(f"--root-dir={place.state / 'kubelet'}", f"--cert-dir={place.state / 'kubelet' / 'pki'}"),
        *(f"--hostname-override={place.name}", f"--node-ip={place.address}"),
    ]


def proxy(binaries: Path, place: Place) -> list[str]:
    return [
        str(binaries / "kube-proxy"),
        *(f"--kubeconfig={place.files / 'proxy.kubeconfig'}", f"--hostname-override={place.name}"),
        *(f"--cluster-cidr={PODS}", "--proxy-mode=iptables", "--conntrack-max-per-core=0"),
    ]


def policies(place: Place) -> list[str]:
    return [sys.executable, "-m", "tests.cluster.policies", str(place.kubeconfig)]


def _kubelet(place: Place) -> dict:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{place.cgroup}",
        "failSwapOn": False,
        # Only the API server and the host reach it.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "10s",
        # The disk and the memory are the machine's, and others fill them.
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }


# restrict_oom_score_adj: lowering it is not permitted everywhere, a container's root among others.
_CONTAINERD = """\
version = 2
root = "{place.state}/containerd/root"
state = "{place.state}/containerd/state"
[grpc]
  address = "{place.containerd}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{place.registries}"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "/usr/sbin/runc"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{place.files}/cni"
"""


def _network(place: Place) -> dict:
    return {
        "cniVersion": "0.3.1",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": place.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
