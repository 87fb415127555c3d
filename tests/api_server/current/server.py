"""The custom-resource API server of a current Kubernetes, as a plain process on loopback, with an etcd of its own.

It needs no control plane: a client certificate of group `system:masters` may do everything, so that nobody is ever
asked who a caller is, and the admission plugins that look at other objects (namespaces, webhooks) are off. It has no
`/api`, without which kubectl works with no server: these tests speak HTTP with it.
"""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.api_server.current.binary import Binary
from tests.cluster import credentials, servers
from tests.support.kubernetes.kube import eventually
from tests.support.processes import processes

from rlhf_operator.local.resources.ports import HOST, assign

_TIMEOUT_S = 240
_ADMISSION = (
    *("NamespaceLifecycle", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"),
    *("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"),
)
JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"


def _kubeconfig(url: str) -> dict[str, Any]:
    """Of a core API server, which need not be there."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "core", "cluster": {"server": url}}],
        "contexts": [{"name": "core", "context": {"cluster": "core", "user": ""}}],
        "current-context": "core",
    }


class Refused(Exception):
    """The server's answer is an error; the text is its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Answer:
    body: Any
    warnings: str
    """The `Warning` headers."""


@dataclass(frozen=True)
class Server:
    version: str
    """Of Kubernetes, such as `1.36.4`."""
    _port: int
    _tls: ssl.SSLContext

    def call(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Answer:
        """Raises Refused with what the server says against it."""
        connection = http.client.HTTPSConnection(HOST, self._port, timeout=_TIMEOUT_S, context=self._tls)
        try:
            sent = body if isinstance(body, str) or body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": kind, "Accept": JSON})
            answer = connection.getresponse()
            text, warnings = answer.read(), answer.headers.get_all("Warning") or []
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refused(answer.status, _message(text))
        return Answer(json.loads(text) if text.startswith(b"{") else text.decode(), "\n".join(warnings))


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError):
        return text.decode(errors="replace")


@contextmanager
def server(binary: Binary, folder: Path, *flags: str, core: str | None = None) -> Iterator[Server]:
    """With its state and logs in `folder`; ended afterwards, or when this process dies.

    `core` is the URL where it reads ValidatingAdmissionPolicies, if at all.
    """
    port, etcd_port, peer_port = assign(["API server", "etcd", "etcd's peers"], None).values()
    files = folder / "files"
    credentials.make(files, f"https://{HOST}:{port}", (HOST,))
    authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-subj", "/O=system:masters/CN=tests")
    credentials.openssl(
        files, "req", "-x509", *credentials.KEY, *authority, "-addext", "basicConstraints=critical,CA:FALSE",
        "-keyout", "tests.key", "-out", "tests.crt",
    )  # fmt: skip
    tls = ssl.create_default_context(cafile=str(files / "ca.crt"))
    tls.load_cert_chain(files / "tests.crt", files / "tests.key")
    kubeconfig = files / "core.kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(core or f"http://{HOST}:1")))
    off = [plugin for plugin in _ADMISSION if core is None or plugin != "ValidatingAdmissionPolicy"]
    command = [
        str(binary.program),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        *(f"--secure-port={port}", f"--bind-address={HOST}"),
        *(f"--tls-cert-file={files / 'api.crt'}", f"--tls-private-key-file={files / 'api.key'}"),
        f"--client-ca-file={files / 'ca.crt'}",
        *(
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
        ),
        *("--authentication-skip-lookup=true", "--enable-priority-and-fairness=false"),
        f"--disable-admission-plugins={','.join(off)}",
        *flags,
    ]
    with processes(folder) as running:
        running.launch("etcd", servers.etcd(folder / "etcd", etcd_port, peer_port))
        running.launch("apiextensions-apiserver", command)
        made = Server(binary.version, port, tls)

        def ready() -> bool:
            running.check()
            try:
                # Not /readyz, which waits for an informer of the core API's Services.
                return made.call("GET", "/livez").body == "ok"
            except (Refused, OSError, http.client.HTTPException):
                return False

        eventually(ready, "the API server's readiness", _TIMEOUT_S)
        yield made
