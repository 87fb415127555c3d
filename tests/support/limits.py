"""Pod settings that an operator's limits allow or refuse, with a word of each refusal."""

from typing import Any

LIMITS: dict[str, Any] = {
    "serviceAccounts": ["default", "training"],
    "images": ["registry.example/team/", "registry.example/one"],
    "hostPaths": ["/models"],
    "volumeTypes": ["projected"],
    "capabilities": ["IPC_LOCK"],
    "priorityClasses": ["batch"],
    "queues": ["team"],
    "runtimeClasses": ["gvisor"],
    "tolerations": ["nvidia.com/gpu"],
}
"""Values of the chart; all else as it is by default."""


def template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def role(**container: Any) -> dict[str, Any]:
    return template(containers=[{"name": "role", **container}])


def secured(**context: Any) -> dict[str, Any]:
    """The role's container with this security context."""
    return role(securityContext=context)


def sidecar(kind: str = "containers", **container: Any) -> dict[str, Any]:
    return template(**{kind: [{"name": "s", "image": "registry.example/one", **container}]})


def volume(path: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "mountPath": "/v", "hostPath": path}]}


def affine(place: str, **term: Any) -> dict[str, Any]:
    """A node affinity of one term, required or preferred."""
    terms: Any = {"nodeSelectorTerms": [term]} if place == "required" else [{"weight": 1, "preference": term}]
    return template(affinity={"nodeAffinity": {f"{place}DuringSchedulingIgnoredDuringExecution": terms}})


def by(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": ["one"]}


APPARMOR = "container.apparmor.security.beta.kubernetes.io"

ALLOWED: list[dict[str, Any]] = [
    {},
    {"image": "registry.example/team/trainer:1"},
    {"image": "registry.example/one@sha256:0f"},
    volume("/models/llama"),
    {"priorityClass": "batch"},
    template(serviceAccountName="training", hostNetwork=False),
    template(volumes=[{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]),
    secured(capabilities={"add": ["IPC_LOCK"]}),
    secured(allowPrivilegeEscalation=False, capabilities={"drop": ["ALL", "CHOWN"]}, privileged=False),
    secured(**{"$patch": "replace"}, allowPrivilegeEscalation=False, capabilities={"drop": ["ALL"]}),
    secured(runAsUser=None, privileged=None, seccompProfile=None, procMount="Default"),
    sidecar(),
    sidecar("initContainers", securityContext={"runAsUser": 0, "runAsNonRoot": False}),
    sidecar(ports=[{"containerPort": 1, "hostPort": None}], livenessProbe={"httpGet": {"port": 1}}),
    sidecar(ports=None),
    role(livenessProbe=None, lifecycle=None),
    template(serviceAccountName=None, priorityClassName=None, hostNetwork=None, securityContext=None),
    template(securityContext={"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "4096 1 2"}]}),
    template(securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}),
    template(securityContext={"seLinuxOptions": {"type": "container_t", "level": "s0"}, "sysctls": None}),
    template(volumes=[{"name": "v", "nfs": {"server": "nas"}, "$patch": "delete"}]),
    template(volumes=[{"name": "workspace", "nfs": None}]),
    sidecar(securityContext={"privileged": True}, **{"$patch": "delete"}),
    {"template": {"metadata": {"annotations": {f"{APPARMOR}/role": "runtime/default"}}}},
    template(schedulerName="default-scheduler", runtimeClassName="gvisor"),
    template(schedulerName=None, runtimeClassName=None, tolerations=None, nodeSelector=None, affinity=None),
    {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "nodeSelector": {"pool": "gpus"}},
    template(
        tolerations=[{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 9}]
    ),
    affine("required", matchExpressions=[by("topology.kubernetes.io/zone")], matchFields=None),
    template(affinity={"nodeAffinity": None, "podAntiAffinity": {}}),
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
    ({"template": {"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "urgent"}}}}, "priority class"),
    ({"image": "registry.example/one:5000/trainer"}, "image"),
    (template(schedulerName="volcano"), "a scheduler"),
    (template(runtimeClassName="host"), "runtime class"),
    ({"tolerations": [{"operator": "Exists"}]}, "a toleration"),
    (
        {"tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]},
        "a toleration",
    ),
    (template(tolerations=[{"key": None, "operator": "Exists"}]), "a toleration"),
    (template(tolerations=[{"key": "team", "operator": "Exists"}]), "a toleration"),
    ({"nodeSelector": {"kubernetes.io/hostname": "one"}}, "a node's name"),
    (template(nodeSelector={"node-role.kubernetes.io/control-plane": ""}), "a node's name"),
    (affine("required", matchFields=[by("metadata.name")]), "a node's name"),
    (affine("required", matchExpressions=[by("kubernetes.io/hostname")]), "a node's name"),
    (affine("preferred", matchExpressions=[by("node-role.kubernetes.io/master")]), "a node's name"),
    (template(serviceAccountName="admin"), "service account"),
    (template(serviceAccount="admin"), "service account"),
    *((template(**{key: True}), "node's network") for key in ("hostNetwork", "hostPID", "hostIPC")),
    (
        template(containers=[{"name": "s", "image": "registry.example/one", "ports": [{"hostPort": 22}]}]),
        "ports",
    ),
    *(
        (part, "a host of a probe")
        for part in (
            role(readinessProbe={"httpGet": {"host": "169.254.169.254"}}),
            sidecar(startupProbe={"httpGet": {"host": "127.0.0.1", "port": 1}}),
            sidecar("initContainers", livenessProbe={"tcpSocket": {"host": "127.0.0.1", "port": 1}}),
            sidecar(lifecycle={"postStart": {"httpGet": {"host": "127.0.0.1", "port": 1}}}),
            role(lifecycle={"preStop": {"tcpSocket": {"host": "127.0.0.1", "port": 1}}}),
        )
    ),
    (secured(privileged=True), "privileged"),
    *(
        (part, "allowPrivilegeEscalation")
        for part in (
            secured(allowPrivilegeEscalation=True),
            secured(allowPrivilegeEscalation=None),
            secured(**{"$patch": "replace"}, capabilities={"drop": ["ALL"]}),
            role(securityContext=None),
            sidecar(securityContext={"allowPrivilegeEscalation": None}),
            sidecar("initContainers", securityContext=None),
        )
    ),
    (secured(capabilities={"add": ["SYS_ADMIN"]}), "capability"),
    *(
        (part, "capabilities without `drop")
        for part in (
            secured(capabilities=None),
            secured(capabilities={"drop": None}),
            secured(capabilities={"drop": ["CHOWN"]}),
            secured(capabilities={"$patch": "replace", "add": ["IPC_LOCK"]}),
            secured(**{"$patch": "replace"}, allowPrivilegeEscalation=False),
            sidecar(securityContext={"capabilities": {"drop": []}}),
        )
    ),
    *(
        (part, word)
        for word, context in {
            "procMount": {"procMount": "Unmasked"},
            "seccompProfile.type": {"seccompProfile": {"type": "Unconfined"}},
            "appArmorProfile.type": {"appArmorProfile": {"type": "Unconfined"}},
            "seLinuxOptions.type": {"seLinuxOptions": {"type": "spc_t"}},
            "seLinuxOptions.user": {"seLinuxOptions": {"user": "system_u"}},
            "seLinuxOptions.role": {"seLinuxOptions": {"role": "system_r"}},
            "windowsOptions.hostProcess": {"windowsOptions": {"hostProcess": True}},
        }.items()
        for part in (
            secured(**context),
            sidecar("initContainers", securityContext=context),
            template(securityContext=context),
        )
    ),
    (template(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), "sysctl"),
    ({"template": {"metadata": {"annotations": {f"{APPARMOR}/role": "unconfined"}}}}, "an annotation"),
]
"""Pod settings and a word of the policy's message."""
