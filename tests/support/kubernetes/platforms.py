"""Rules of managed platforms on pods, as far as they are published; each yields what the platform refuses."""

from collections.abc import Iterator, Mapping
from typing import Any

Body = Mapping[str, Any]

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"),
    *("projected", "secret"),
}
"""Types of `restricted-v2`, and of the `restricted` standard."""
AUTOPILOT_CAPABILITIES = {
    *("SETPCAP", "MKNOD", "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID"),
    *("SETUID", "NET_BIND_SERVICE", "SYS_CHROOT", "SETFCAP", "SYS_PTRACE"),
}
HOST = ("hostNetwork", "hostPID", "hostIPC")
ACCELERATOR, GPU = "cloud.google.com/gke-accelerator", "nvidia.com/gpu"


def containers(pod: Body) -> list[Body]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def _hosts(pod: Body) -> Iterator[str]:
    yield from (field for field in HOST if pod["spec"].get(field))
    for container in containers(pod):
        yield from ("hostPort" for port in container.get("ports", ()) if port.get("hostPort"))
        if container.get("securityContext", {}).get("privileged"):
            yield "privileged"


def refused_by_openshift(pod: Body, users: range, groups: range) -> list[str]:
    """SCC `restricted-v2` of a namespace with these ranges (`openshift.io/sa.scc.uid-range`, `...supplemental-groups`).

    Source: `oc describe scc restricted-v2` of OpenShift 4.16: MustRunAsRange, fsGroup MustRunAs, required drop of ALL,
    allowed NET_BIND_SERVICE, seccomp runtime/default.
    """
    context, problems = pod["spec"].get("securityContext", {}), [*_hosts(pod)]
    if (group := context.get("fsGroup", groups[0])) not in groups:
        problems.append(f"fsGroup {group}")
    problems += [f"supplementalGroups {g}" for g in context.get("supplementalGroups", ()) if g not in groups]
    for volume in pod["spec"].get("volumes", ()):
        problems += [f"volume {kind}" for kind in volume.keys() - {"name"} - VOLUMES]
    for container in containers(pod):
        own = container.get("securityContext", {})
        both = {**context, **own}
        if (user := both.get("runAsUser", users[0])) not in users:
            problems.append(f"runAsUser {user}")
        if both.get("seccompProfile", {}).get("type", "RuntimeDefault") != "RuntimeDefault":
            problems.append("seccompProfile")
        if own.get("allowPrivilegeEscalation"):
            problems.append("allowPrivilegeEscalation")
        problems += [
            f"capability {c}" for c in own.get("capabilities", {}).get("add", ()) if c != "NET_BIND_SERVICE"
        ]
    return problems


def refused_by_autopilot(pod: Body) -> list[str]:
    """GKE Autopilot without allowlisted workloads and bursting; also what it would change to less than a role needs.

    Source: https://cloud.google.com/kubernetes-engine/docs/concepts/autopilot-security, .../autopilot-resource-requests
    """
    spec, problems = pod["spec"], [*_hosts(pod)]
    for volume in spec.get("volumes", ()):
        host = volume.get("hostPath", {}).get("path", "/var/log/")
        if not host.startswith("/var/log/"):
            problems.append(f"hostPath {host}")
    for container in containers(pod):
        added = container.get("securityContext", {}).get("capabilities", {}).get("add", ())
        problems += [f"capability {each}" for each in added if each not in AUTOPILOT_CAPABILITIES]
    (role,) = spec["containers"]
    requests, limits = (role.get("resources", {}).get(kind, {}) for kind in ("requests", "limits"))
    for resource in ("cpu", "memory", "ephemeral-storage"):
        if resource not in requests:
            problems.append(f"no request of {resource}")
        elif limits.get(resource) != requests[resource]:
            problems.append(f"limit of {resource} is not its request")
    if GPU in limits and ACCELERATOR not in spec.get("nodeSelector", {}):
        problems.append("a GPU without its accelerator's label")
    return problems
