"""A server of external metrics behind the API server, as Prometheus' adapter and KEDA have one: of one metric, made of
an operator's page of metrics whenever it is asked for."""

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.support.kubernetes.kube import eventually, kubectl
from tests.support.servers.http_threads import serving

_GROUP, _VERSION = "external.metrics.k8s.io", "v1beta1"
METRIC = "rlhf_generating"
"""The share of a job's last step in which generators had requests: 1 - rlhf_job_generator_idle."""


def generating(page: str, namespace: str, job: str) -> float | None:
    """Of a page of the operator's metrics; None where it does not have it."""
    samples = (each for family in text_string_to_metric_families(page) for each in family.samples)
    labels = {"namespace": namespace, "rlhfjob": job}
    shares = (1 - s.value for s in samples if s.name == "rlhf_job_generator_idle" and s.labels == labels)
    return next(shares, None)


@contextmanager
def external_metrics(
    kubeconfig: Path, files: Path, read_value: Callable[[str], float | None]
) -> Iterator[None]:
    """Served while the body runs. `files`: the folder of `credentials.make`; `read_value`: the value in a namespace."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            *_, namespaces, namespace, metric = ("", "", *self.path.partition("?")[0].split("/"))
            if (namespaces, metric) != ("namespaces", METRIC):
                self._send(
                    {"kind": "APIResourceList", "groupVersion": f"{_GROUP}/{_VERSION}", "resources": []}
                )
                return
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            value = read_value(namespace)
            items = (
                []
                if value is None
                else [{"metricName": metric, "timestamp": at, "value": f"{value * 1000:.0f}m"}]
            )
            self._send({"kind": "ExternalMetricValueList", "items": items})

        def _send(self, body: dict) -> None:
            content = json.dumps({"apiVersion": f"{_GROUP}/{_VERSION}", **body}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files / "api.crt", files / "api.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": _registration(server.server_port)})
        kubectl(kubeconfig, "create", "-f", "-", input=objects)
        try:
            path = f"--raw=/apis/{_GROUP}/{_VERSION}"
            eventually(lambda: kubectl(kubeconfig, "get", path), "the API server's way to the metrics")
            yield
        finally:
            # First of all: while a group does not answer, no namespace can be deleted.
            kubectl(kubeconfig, "delete", "-f", "-", input=objects)


def _registration(port: int) -> list[dict]:
    service = {"name": "metrics", "namespace": "default"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": service,
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{_VERSION}.{_GROUP}"},
            "spec": {
                "service": {**service, "port": port},
                "group": _GROUP,
                "version": _VERSION,
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]
