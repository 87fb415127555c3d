"""Allow-lists of an administrator for jobs' pods; see `limit_checks`."""

from rlhf_api.base import Frozen

ANY = "*"
"""List entry that allows everything."""


class Limits(Frozen):
    """The chart's `limits`. Each list is an allow-list; `*` allows everything."""

    service_accounts: tuple[str, ...] = ("default",)
    images: tuple[str, ...] = (ANY,)
    """Registries or repositories: allows an image whose name equals an entry or continues it with `/`, `:` or `@`. The
    operator's own trainer image is always allowed."""
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
