"""Connections from other pods to the ports of a running job: which of them its enforced NetworkPolicy admits."""

import json

from tests.cluster.jobs.visitors import REACHED, READY_S, REJECTED, tried, visit
from tests.support.installed import MONITORING, PROMETHEUS
from tests.support.kubernetes.kube import eventually, kubectl, new_namespace
from tests.support.kubernetes.operator import Jobs

from rlhf_operator.job.ports import PORT

LISTENING = """
import json, psutil
found = [c.laddr for c in psutil.net_connections("tcp") if c.status == "LISTEN"]
print(json.dumps(sorted({port for address, port in found if address not in ("127.0.0.1", "::1")})))
"""


def check_network(jobs: Jobs, job: str) -> None:
    """The Prometheus that the chart names reaches the HTTP port of each of the job's pods, and nobody else any port on
    which one listens; the job itself and the operator show by going on that they reach what they need.
    """
    ends: list[tuple[str, int]] = []
    for each in jobs.get("pods", "-l", f"rlhf.dev/job={job}")["items"]:
        inside = ("exec", each["metadata"]["name"], "-n", jobs.namespace, "--", "python3", "-c", LISTENING)
        ports = json.loads(kubectl(jobs.kubeconfig, *inside))
        assert PORT in ports, each["metadata"]["name"]
        ends += [(each["status"]["podIP"], port) for port in ports]
    assert any(port != PORT for _, port in ends), "ports of collectives"

    visit(
        jobs.kubeconfig, jobs.namespace, PROMETHEUS
    )  # its labels, in a namespace without those of the chart's
    assert {*tried(jobs.kubeconfig, jobs.namespace, PROMETHEUS, ends)} == {REJECTED}
    jobs.kubectl("delete", "pod", PROMETHEUS)
    with new_namespace(jobs.kubeconfig) as namespace:
        kubectl(jobs.kubeconfig, "label", "namespace", namespace, MONITORING)
        visit(jobs.kubeconfig, namespace, PROMETHEUS)
        expected = [REACHED if port == PORT else REJECTED for _, port in ends]
        eventually(
            lambda: tried(jobs.kubeconfig, namespace, PROMETHEUS, ends) == expected,
            "Prometheus reaches the HTTP ports alone",
            READY_S,
        )
