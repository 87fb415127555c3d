"""Checks of the `baseline` Pod Security Standard on security contexts, annotations and probes; pure.

Host namespaces, ports, paths and capabilities, which it also forbids, have limits of their own (`limit_checks`).
Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Body = Mapping[str, Any]

_PROFILES = ("RuntimeDefault", "Localhost")
_SETTINGS: Mapping[tuple[str, ...], tuple[object, ...]] = {
    ("privileged",): (False,),
    ("procMount",): ("", "Default"),
    ("seccompProfile", "type"): _PROFILES,
    ("appArmorProfile", "type"): _PROFILES,
    ("seLinuxOptions", "type"): (
        "",
        "container_t",
        "container_init_t",
        "container_kvm_t",
        "container_engine_t",
    ),
    ("seLinuxOptions", "user"): ("",),
    ("seLinuxOptions", "role"): ("",),
    ("windowsOptions", "hostProcess"): (False,),
}
"""Allowed values of a security context's fields, a pod's or a container's."""
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
)
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def forbidden(context: Body) -> Iterator[tuple[str, object, Sequence[object]]]:
    """Forbidden fields of a security context: each one's path, its value, and the values that are allowed."""
    for path, allowed in _SETTINGS.items():
        value: Any = context
        for key in path:
            value = as_object(value).get(key)
        if value is not None and value not in allowed:
            yield ".".join(path), value, allowed
    for sysctl in map(as_object, as_list(context.get("sysctls"))):
        if sysctl.get("name") not in _SYSCTLS:
            yield "sysctls", sysctl.get("name"), _SYSCTLS


def unconfined(metadata: Body) -> Iterator[str]:
    """Annotations that take AppArmor or seccomp away, which servers read beside the fields."""
    for key, value in as_object(metadata.get("annotations")).items():
        if ".security." in key and value == "unconfined":
            yield key


def probed_hosts(container: Body) -> Iterator[tuple[str, object]]:
    """Path and value of hosts that the kubelet would call, from the node's network, instead of the pod."""
    hooks = as_object(container.get("lifecycle"))
    handlers = {key: container.get(key) for key in _PROBES} | {
        f"lifecycle.{key}": hooks[key] for key in hooks
    }
    for place, handler in handlers.items():
        for kind in ("httpGet", "tcpSocket"):
            if host := as_object(as_object(handler).get(kind)).get("host"):
                yield f"{place}.{kind}.host", host


def as_object(value: Any) -> Body:
    """The value if it is an object, else an empty one: the API server refuses the pod anyway."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
