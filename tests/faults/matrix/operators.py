"""The operators of the chart, as pods that are killed, moved and cut off."""

from typing import Any

from tests.cluster.node import Place
from tests.faults.matrix import nodes
from tests.faults.matrix.meeting import READY_SECONDS
from tests.support.installed import SYSTEM
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs


class Operators:
    """All there are; one leads."""

    def __init__(self, place: Place) -> None:
        self._kubeconfig, self._second = place.kubeconfig, place.second.name
        self._jobs = Jobs(place.kubeconfig, SYSTEM)

    def ready(self) -> dict[str, str]:
        """Uids of ready ones, with the number of restarts, as `operator-0` and so on."""
        marks = [
            f"{pod['metadata']['uid']}/{status['restartCount']}"
            for pod in self.pods()
            for status in pod["status"].get("containerStatuses", ())
            if status["ready"]
        ]
        return {f"operator-{i}": mark for i, mark in enumerate(sorted(marks))}

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not being deleted."""
        pods_with_metadata = [(pod, pod["metadata"]) for pod in self._jobs.get("pods")["items"]]
        return [
            p for p, m in pods_with_metadata if m["name"].startswith("rlhf-") and "deletionTimestamp" not in m
        ]

    def leader(self) -> tuple[str, str]:
        """Name and uid of the pod that leads. Raises KubectlError where there is none."""
        name = nodes.leader(self._kubeconfig, SYSTEM)
        return name, self._jobs.get("pod", name)["metadata"]["uid"]

    def addresses(self, *names: str) -> list[str]:
        """Of these operators, or of all."""
        pods = [self._jobs.get("pod", name) for name in names] or self.pods()
        return [pod["status"]["podIP"] for pod in pods]

    def renew(self) -> None:
        """Each fault finds operators that never ended: the kubelet waits longer before each start of the same pod."""
        for pod in self.pods():
            if any(status["restartCount"] for status in pod["status"].get("containerStatuses", ())):
                self._jobs.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")

    def move_leader(self) -> None:
        """Another operator goes to the second node, then the one that leads ends, on the first."""
        first = self.leader()[0]
        for pod in self.pods():
            if pod["metadata"]["name"] != first:
                self._jobs.kubectl("delete", "pod", pod["metadata"]["name"])

        def others() -> list[bool]:
            return [is_up(pod) for pod in self.pods() if pod["metadata"]["name"] != first]

        eventually(lambda: others() == [True], "another operator is on the second node", READY_SECONDS)
        nodes.cordon(self._kubeconfig, self._second)
        self._jobs.kubectl("delete", "pod", first)


def is_up(pod: dict[str, Any]) -> bool:
    """Every container is ready."""
    return all(status["ready"] for status in pod["status"].get("containerStatuses", [{"ready": False}]))
