"""Allow-lists of an administrator for what jobs may ask for; see `limit_checks`."""

from rlhf_api.base import Frozen

ANY = "*"
"""The entry of a list that allows everything."""


class Limits(Frozen):
    """The chart's `limits`. Each list has what is allowed and nothing else is; `*` allows everything."""

    service_accounts: tuple[str, ...] = ("default",)
    images: tuple[str, ...] = (ANY,)
    """Registries or repositories: an image's name, as it is written, is one of them or goes on with `/`, `:` or `@`.
    The operator's own trainer image is allowed always."""
    host_paths: tuple[str, ...] = ()
    """Directories of the nodes, with what lies below them."""
    host_network: bool = False
    """The node's network, its ports, its processes and its IPC."""
    privileged: bool = False
    """Privileged containers, and those that may gain privileges."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities that a container may add, such as IPC_LOCK for RDMA."""
    priority_classes: tuple[str, ...] = ()
    require_queue: bool = False
    """A job must have the label of a Kueue queue."""
