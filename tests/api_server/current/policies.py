"""The part of a core API server that admission policies are read from: there is none beside these custom resources.

It lists policies, bindings and namespaces, and its watches stay silent. Every namespace that is asked for is there,
with the label of its name, which Kubernetes sets itself.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.servers.http_threads import serving

_KINDS = {
    "validatingadmissionpolicies": "ValidatingAdmissionPolicy",
    "validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBinding",
    "namespaces": "Namespace",
    "services": "Service",
}
_INVALID = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}
"""The answer of an older server to a watch that shall begin with a list, after which clients list."""


def _stored(body: Mapping[str, Any]) -> dict[str, Any]:
    """With the defaults that a core API server stores."""
    key = "matchConstraints" if body["kind"] == "ValidatingAdmissionPolicy" else "matchResources"
    spec = dict(body["spec"])
    if key in spec:
        spec[key] = {"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent"} | spec[key]
    return {**body, "spec": spec}


@contextmanager
def policies(objects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Its URL."""
    ended, stored = threading.Event(), [_stored(body) for body in objects]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query, (*_, last) = parse_qs(parts.query), parts.path.split("/")
            if "sendInitialEvents" in query:
                self._answer(422, _INVALID)
            elif "watch" in query:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.flush()
                ended.wait()
            elif "/namespaces/" in parts.path:
                metadata = {"name": last, "labels": {"kubernetes.io/metadata.name": last}}
                self._answer(200, {"kind": "Namespace", "apiVersion": "v1", "metadata": metadata})
            else:
                version = parts.path.removeprefix("/apis/").removeprefix("/api/").removesuffix(f"/{last}")
                kind = _KINDS.get(last, "")
                head = {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "1"}}
                self._answer(200, {**head, "items": [o for o in stored if o["kind"] == kind]})

        def _answer(self, code: int, body: Any) -> None:
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            ended.set()
