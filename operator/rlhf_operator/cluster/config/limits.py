"""Allow-lists of an administrator for jobs' pods; see `limit_checks`."""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_api.errors.problem import Problem, show
from rlhf_api.field_types import Frozen

ANY = "*"
"""List entry that allows everything."""


class Limits(Frozen):
    """The chart's `limits`. Each list is an allow-list; `*` allows everything."""

    service_accounts: tuple[str, ...] = ("default",)
    images: tuple[str, ...] = (ANY,)
    """Registries or repositories: allows an image whose name equals an entry, or continues it with `/`, or with a tag
    or digest. The operator's own trainer image is always allowed."""
    host_paths: tuple[str, ...] = ()
    """Directories of the nodes, with their subdirectories."""
    volume_types: tuple[str, ...] = ("csi", "downwardAPI", "ephemeral", "projected", "secret")
    """Sources of volumes, besides those of the operator's own, host paths and images. A node mounts others than these,
    such as NFS or a cloud's disks, with its own rights, whoever's they are. `ephemeral` makes claims."""
    host_network: bool = False
    """Allows the node's network, ports, process and IPC namespaces, and hosts that the kubelet calls."""
    privileged: bool = False
    """Allows privileged containers, privilege escalation, and what else `baseline` forbids."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities that a container may have, such as IPC_LOCK for RDMA."""
    priority_classes: tuple[str, ...] = ()
    """Of pods, and of Kueue's label."""
    require_queue: bool = False
    """Requires the label of a Kueue queue."""
    queues: tuple[str, ...] = ()
    """Volcano's queues, which are of the whole cluster."""
    schedulers: tuple[str, ...] = ()
    """Schedulers that a template may name, besides the cluster's own and that of `scheduling.gang`."""
    runtime_classes: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ("nvidia.com/gpu",)
    """Keys of the taints that pods may tolerate; a toleration of all keys needs `*`."""
    name_nodes: bool = False
    """Allows selectors and affinities by a node's name, hostname or role, such as that of control planes."""


def refusal(where: str, value: Any, rule: str) -> Problem:
    return Problem(where, f"this cluster's limits do not allow it: {rule}; got {show(value)}")


def listed(where: str, value: Any, allowed: Sequence[str], name: str = "") -> Iterator[Problem]:
    """The problem of a value that a list does not have. `name`: the list's, unless it is the field's."""
    if ANY not in allowed and value not in allowed:
        yield refusal(where, value, f"{name or where.rpartition('.')[2]} may be {names(allowed)}")


def names(allowed: Sequence[str]) -> str:
    return ", ".join(allowed) or "no entries"
