"""Credentials of a test cluster: a certificate authority, tokens, and a kubeconfig for each component."""

import base64
import json
import secrets
import subprocess
from pathlib import Path

NODE, SECOND = "node1", "node2"
_USERS = {
    "admin": ("admin", "system:masters"),
    # Accounts of their own for its forty controllers would make its start 6 s longer.
    "controller-manager": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "kubelet2": (f"system:node:{SECOND}", "system:nodes"),
    "dns": ("system:serviceaccount:kube-system:kube-dns", ""),
}
_NAMES = ("localhost", *(f"kubernetes{rest}" for rest in ("", ".default", ".default.svc")))
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "365")
"""The kind of key, and how long its certificate is good."""
_OPENSSL_S = 120


def make(folder: Path, server: str, addresses: tuple[str, ...]) -> None:
    """Everything into `folder`: certificates for `addresses`, tokens, and `<user>.kubeconfig` files for `server`."""
    folder.mkdir(parents=True, exist_ok=True)
    openssl(
        folder,
        *("req", "-x509", *KEY, "-subj", "/CN=rlhf-test-ca", "-keyout", "ca.key", "-out", "ca.crt"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    names = [f"DNS:{name}" for name in (*_NAMES, "kubernetes.default.svc.cluster.local")]
    openssl(
        folder,
        *("req", "-x509", *KEY, "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", "/CN=kube-apiserver"),
        *("-addext", "subjectAltName=" + ",".join([*names, *(f"IP:{address}" for address in addresses)])),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "api.key", "-out", "api.crt"),
    )
    openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
    openssl(folder, "ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    tokens = {name: secrets.token_hex(16) for name in _USERS}
    lines = [f'{tokens[name]},{user},{name},"{group}"' for name, (user, group) in _USERS.items()]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    for name, token in tokens.items():
        _kubeconfig(folder / f"{name}.kubeconfig", server, authority, token)


def _kubeconfig(file: Path, server: str, authority: str, token: str) -> None:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": server, "certificate-authority-data": authority}}
        ],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    file.write_text(json.dumps(content, indent=1))
    file.chmod(0o600)


def openssl(folder: Path, *arguments: str) -> None:
    """Runs it in `folder`. Raises RuntimeError with what it complains about."""
    command = ["openssl", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_OPENSSL_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
