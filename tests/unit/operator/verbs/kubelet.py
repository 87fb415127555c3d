"""The part of a kubelet that serves logs, for API servers without nodes; its logs say what the test says."""

import datetime
import http.server
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.kubernetes.kube import kubectl
from tests.support.servers.http_threads import serving

HOST = "127.0.0.1"
_PATH = re.compile(r"/containerLogs/(?P<namespace>[^/]+)/(?P<pod>[^/]+)/role")
_WAIT_S = 120


@dataclass
class Kubelet:
    """`write` and `end` are what containers do, `cut` is what happens to connections."""

    node: str
    lines: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Of each pod: the time and the text."""
    ended: set[str] = field(default_factory=set)
    cuts: int = 0
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def write(self, pod: str, *texts: str) -> None:
        with self.changed:
            log = self.lines.setdefault(pod, [])
            for text in texts:  # each a microsecond later, in one second
                stamp = datetime.datetime(2026, 1, 1, microsecond=len(log) + 1).isoformat() + "001Z"
                log.append((stamp, text))
            self.changed.notify_all()

    def end(self, pod: str) -> None:
        with self.changed:
            self.ended.add(pod)
            self.changed.notify_all()

    def again(self, pod: str) -> None:
        """Another pod of that name starts."""
        with self.changed:
            self.ended.discard(pod)
            self.lines.pop(pod, None)

    def cut(self) -> None:
        """Every connection, in the middle of a log."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()


@contextmanager
def kubelet(kubeconfig: Path, folder: Path, node: str) -> Iterator[Kubelet]:
    """Serves the logs of all pods of a new node of that name."""
    made = Kubelet(node)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=node", "-keyout", "node.pem", "-out", "node.crt"],
        cwd=folder, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "node.crt", folder / "node.pem")
    server = http.server.ThreadingHTTPServer((HOST, 0), _handler(made))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    status = {
        "addresses": [{"type": "InternalIP", "address": HOST}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_port}},
    }
    with serving(server):
        kubectl(kubeconfig, "create", "-f", "-", input=json.dumps(body))
        try:
            patch = json.dumps({"status": status})
            kubectl(kubeconfig, "patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)
            yield made
        finally:
            kubectl(kubeconfig, "delete", "node", node, "--wait=false")
            made.cut()


def _handler(kubelet: Kubelet) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            match, query = _PATH.fullmatch(url.path), parse_qs(url.query)
            if match is None or match["pod"] not in kubelet.lines:
                self.send_error(404)
                return
            kubelet.queries.append(query)
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._send(match["pod"], query)

        def _send(self, pod: str, query: dict[str, list[str]]) -> None:
            sent, cuts = 0, kubelet.cuts
            since = query.get("sinceTime", [""])[0][:19]  # a kubelet knows it to the second
            if "tailLines" in query:
                sent = max(0, len(kubelet.lines[pod]) - int(query["tailLines"][0]))
            while True:
                with kubelet.changed:
                    log = kubelet.lines.get(pod, [])
                    new, sent = log[sent:], max(sent, len(log))
                    over = "follow" not in query or pod in kubelet.ended
                    if not new and not over and cuts == kubelet.cuts:
                        kubelet.changed.wait(_WAIT_S)
                        continue
                if cuts != kubelet.cuts:
                    self.close_connection = True
                    self.connection.close()  # no last chunk: cut off
                    return
                for stamp, text in new:
                    if stamp[:19] >= since:
                        self._chunk(f"{stamp} {text}\n".encode())
                if over:
                    self._chunk(b"")
                    return

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def log_message(self, format: str, *values: object) -> None:
            """Nobody reads it."""

    return Handler
