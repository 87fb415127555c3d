"""The command lines of the control plane's servers: the same ones with a node and without."""

from pathlib import Path

SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
ISSUER = "https://kubernetes.default.svc.cluster.local"


def etcd(data: Path, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        *("etcd", "--data-dir", str(data), "--unsafe-no-fsync"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *(
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
        ),
    ]


def apiserver(binaries: Path, files: Path, etcd_port: int, port: int, bind: str, advertise: str) -> list[str]:
    """`files` is the folder of `credentials.make`."""
    return [
        str(binaries / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        *(f"--secure-port={port}", f"--bind-address={bind}", f"--advertise-address={advertise}"),
        *(f"--tls-cert-file={files / 'api.crt'}", f"--tls-private-key-file={files / 'api.key'}"),
        *(f"--client-ca-file={files / 'ca.crt'}", f"--token-auth-file={files / 'tokens.csv'}"),
        *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
        *(f"--service-account-key-file={files / 'sa.pub'}", f"--service-account-issuer={ISSUER}"),
        f"--service-account-signing-key-file={files / 'sa.key'}",
        *(f"--service-cluster-ip-range={SERVICES}", "--allow-privileged=true"),
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controller_manager(binaries: Path, files: Path) -> list[str]:
    return [
        str(binaries / "kube-controller-manager"),
        *(f"--kubeconfig={files / 'controller-manager.kubeconfig'}", "--leader-elect=false"),
        f"--root-ca-file={files / 'ca.crt'}",
        f"--service-account-private-key-file={files / 'sa.key'}",
        *(
            f"--cluster-signing-cert-file={files / 'ca.crt'}",
            f"--cluster-signing-key-file={files / 'ca.key'}",
        ),
        "--horizontal-pod-autoscaler-sync-period=2s",  # 15 s otherwise
        # Nothing asks it for anything, and two on one host would want one port.
        *("--port=0", "--secure-port=0"),
    ]


def scheduler(binaries: Path, files: Path) -> list[str]:
    config = f"--kubeconfig={files / 'scheduler.kubeconfig'}"
    return [str(binaries / "kube-scheduler"), config, "--leader-elect=false", "--port=0", "--secure-port=0"]
