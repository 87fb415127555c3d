"""Pod settings that an operator's limits allow or refuse, with a word of each refusal."""

from typing import Any

LIMITS: dict[str, Any] = {
    "serviceAccounts": ["default", "training"],
    "images": ["registry.example/team/", "registry.example/one"],
    "hostPaths": ["/models"],
    "volumeTypes": ["projected"],
    "capabilities": ["IPC_LOCK"],
    "priorityClasses": ["batch"],
}
"""Values of the chart; all else as it is by default."""


def template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def role(**container: Any) -> dict[str, Any]:
    return template(containers=[{"name": "role", **container}])


def volume(path: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "mountPath": "/v", "hostPath": path}]}


ALLOWED: list[dict[str, Any]] = [
    {},
    {"image": "registry.example/team/trainer:1"},
    {"image": "registry.example/one@sha256:0f"},
    volume("/models/llama"),
    {"priorityClass": "batch"},
    template(serviceAccountName="training", hostNetwork=False),
    template(volumes=[{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]),
    role(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"image": "registry.example/teams/trainer:1"}, "image"),
    ({"image": "elsewhere.example/trainer"}, "image"),
    (role(image="elsewhere.example/trainer"), "image"),
    (template(initContainers=[{"name": "i", "image": "elsewhere.example/i"}]), "image"),
    (template(volumes=[{"name": "i", "image": {"reference": "elsewhere.example/i"}}]), "image"),
    (volume("/etc/kubernetes"), "host path"),
    (volume("/modelsx"), "host path"),
    (template(volumes=[{"name": "v", "hostPath": {"path": "/models/../etc"}}]), "host path"),
    (template(volumes=[{"name": "v", "nfs": {"server": "nas", "path": "/home"}}]), "type of volume"),
    ({"volumes": [{"name": "v", "mountPath": "/v", "secret": "s"}]}, "type of volume"),
    (template(volumes=[{"name": "v", "awsElasticBlockStore": {"volumeID": "vol-1"}}]), "type of volume"),
    ({"priorityClass": "system-node-critical"}, "priority class"),
    (template(priorityClassName="system-node-critical"), "priority class"),
    (template(serviceAccountName="admin"), "service account"),
    (template(serviceAccount="admin"), "service account"),
    *((template(**{key: True}), "node's network") for key in ("hostNetwork", "hostPID", "hostIPC")),
    (
        template(containers=[{"name": "s", "image": "registry.example/one", "ports": [{"hostPort": 22}]}]),
        "ports",
    ),
    (role(securityContext={"privileged": True}), "privileged"),
    (role(securityContext={"allowPrivilegeEscalation": True}), "privileged"),
    (role(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "capability"),
]
"""Pod settings and a word of the policy's message."""
