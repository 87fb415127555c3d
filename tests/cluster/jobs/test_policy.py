"""The NetworkPolicy that the operator makes for a job, on a network that enforces it: with it and without."""

import json

import pytest
from tests.cluster import images
from tests.cluster.jobs.test_cluster import READY
from tests.cluster.jobs.visitors import REACHED, READY_S, REJECTED, pod, tried, visit
from tests.support.kubernetes.cluster import Cluster, existing
from tests.support.kubernetes.kube import eventually, get, kubectl
from tests.unit.api.manifests import job

from rlhf_api.roles import Role
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.objects.companions import companions
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.job.ports import PORT

STORE = 29500
SERVE = f"""
import http.server as s, threading
for port in ({PORT}, {STORE}):
    threading.Thread(target=s.HTTPServer(("", port), s.SimpleHTTPRequestHandler).serve_forever).start()
"""


def test_without_its_policy_everybody_reaches_a_jobs_ports(cluster: Cluster, namespace: str) -> None:
    """The job's own pods reach both, a named Prometheus the HTTP port, and a stranger none, while it is there."""
    if existing() is not None:
        pytest.skip("a named cluster may enforce nothing: unset RLHF_TEST_KUBECONFIG")
    settings = Settings(trainer_image=images.TRAINER, token_key=b"k" * 32)
    made = Pinned.make("job", job().spec, settings.defaults)
    monitoring = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    bodies = companions(made, "job-uid", "system", (monitoring,))
    (policy,) = (body for body in bodies if body["kind"] == "NetworkPolicy")
    labels = build_pod(made, NewPod(Role.TRAINER, 0, 1, False, 0), "1")["metadata"]["labels"]
    trainer, mate = (pod(name, images.OPERATOR, "python3", "-c", SERVE) for name in ("trainer", "mate"))
    for each in (trainer, mate):
        each["metadata"]["labels"] |= labels
    content = {"apiVersion": "v1", "kind": "List", "items": [policy, trainer, mate]}
    kubectl(cluster.kubeconfig, "apply", "-n", namespace, "-f", "-", input=json.dumps(content))
    kubectl(cluster.kubeconfig, "wait", "pod/trainer", "pod/mate", "-n", namespace, *READY)
    address = get(cluster.kubeconfig, "pod", "trainer", "-n", namespace)["status"]["podIP"]
    for name in ("prometheus", "stranger"):
        visit(cluster.kubeconfig, namespace, name)

    def reaches(name: str, *outcomes: str) -> None:
        ends = [(address, PORT), (address, STORE)]
        # Its address is known a moment after its start.
        eventually(
            lambda: tried(cluster.kubeconfig, namespace, name, ends) == [*outcomes],
            f"what {name} reaches is {outcomes}",
            READY_S,
        )

    reaches("mate", REACHED, REACHED)
    reaches("prometheus", REACHED, REJECTED)
    reaches("stranger", REJECTED, REJECTED)
    kubectl(cluster.kubeconfig, "delete", "networkpolicy", policy["metadata"]["name"], "-n", namespace)
    reaches("stranger", REACHED, REACHED)
