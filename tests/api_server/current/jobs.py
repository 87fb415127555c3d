"""RLHFJobs and their definition on a server, by its paths."""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.api_server.current.server import APPLY, MERGE, Answer, Refused, Server
from tests.support.kubernetes.kube import eventually
from tests.unit.api.manifests import document

from rlhf_api.schema.crd import crd

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NAME = crd()["metadata"]["name"]


def define(server: Server, definition: dict[str, Any] | None = None) -> None:
    """Creates or replaces the definition (the present one unless given) and waits until it is served.

    Raises:
        Refused: the server does not take it.
    """
    body = definition or crd()
    try:
        before = server.call("GET", f"{DEFINITIONS}/{_NAME}").body
    except Refused:
        server.call("POST", DEFINITIONS, body)
    else:
        metadata = {**body["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
        server.call("PUT", f"{DEFINITIONS}/{_NAME}", {**body, "metadata": metadata})
    versions = [version["name"] for version in body["spec"]["versions"]]
    eventually(lambda: all(_served(server, version) for version in versions), f"{versions} are served")


def check(server: Server, definition: dict[str, Any]) -> None:
    """A dry run of a new definition like this. Raises Refused with what the server says against it."""
    renamed = json.loads(json.dumps(definition).replace("rlhfjob", "checkedjob"))
    server.call("POST", f"{DEFINITIONS}?dryRun=All", renamed)


def defined(server: Server) -> dict[str, Any]:
    """The definition as it is stored."""
    return server.call("GET", f"{DEFINITIONS}/{_NAME}").body


def forget_version(server: Server, *stored: str) -> None:
    """Says that objects are stored in these versions alone."""
    body = {"status": {"storedVersions": [*stored]}}
    server.call("PATCH", f"{DEFINITIONS}/{_NAME}/status", body, MERGE)


def _served(server: Server, version: str) -> bool:
    try:
        server.call("GET", f"/apis/rlhf.dev/{version}/rlhfjobs")
    except Refused:
        return False
    return True


@dataclass(frozen=True)
class Jobs:
    """Calls for the jobs of one namespace, which need not exist; bodies may be invalid."""

    server: Server
    version: str = "v1alpha1"
    namespace: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:8]}")

    def create(self, body: Any, query: str = "") -> Answer:
        return self.server.call("POST", self._path(query=query), body)

    def get(self, name: str = "job") -> Any:
        return self.server.call("GET", self._path(name)).body

    def names(self, selector: str = "") -> list[str]:
        listing = self.server.call(
            "GET", self._path(query=f"fieldSelector={selector}" if selector else "")
        ).body
        return [item["metadata"]["name"] for item in listing["items"]]

    def replace(self, spec: Any, name: str = "job", query: str = "") -> Answer:
        """Another spec in the place of the present one."""
        body = {**self.get(name), "spec": spec}
        return self.server.call("PUT", self._path(name, query=query), body)

    def merge(self, change: Any, name: str = "job", part: str = "", query: str = "") -> Answer:
        return self.server.call("PATCH", self._path(name, part, query), change, MERGE)

    def apply(self, body: Any, manager: str, part: str = "", force: bool = False) -> Answer:
        """Server-side apply."""
        query = f"fieldManager={manager}{'&force=true' if force else ''}"
        return self.server.call(
            "PATCH", self._path(body["metadata"]["name"], part, query), json.dumps(body), APPLY
        )

    def with_status(self, status: Any, *overrides: str) -> Any:
        """The valid job with overrides, created, and told this status."""
        self.create(document(*overrides))
        return self.merge({"status": status}, part="/status").body

    def _path(self, name: str = "", part: str = "", query: str = "") -> str:
        path = f"/apis/rlhf.dev/{self.version}/namespaces/{self.namespace}/rlhfjobs"
        return f"{path}{f'/{name}' if name else ''}{part}{f'?{query}' if query else ''}"
