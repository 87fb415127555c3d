"""Detects why NCCL would use TCP in a job that asks for RDMA; NCCL falls back silently."""

import ctypes
from collections.abc import Mapping
from pathlib import Path

from rlhf_api.contract.run import RunConfig
from rlhf_api.roles import Role

DEVICES = ("rdma", "infiniband", "roce", "/hca", "/ib")
"""Substrings of resource names used by RDMA device plugins and SR-IOV operators, as in `rdma/hca_shared_devices_a`."""


def asked_for(config: RunConfig, role: Role, environ: Mapping[str, str]) -> str | None:
    """The setting by which a role requests RDMA; None if there is none."""
    resources = config.spec.pods_of(role).resources
    for resource in (*resources.limits, *resources.requests):
        if any(word in resource.lower() for word in DEVICES):
            return resource
    if environ.get("NCCL_NET", "").upper() == "IB":
        return "NCCL_NET"
    return "NCCL_IB_HCA" if environ.get("NCCL_IB_HCA") else None


def hindrance(
    environ: Mapping[str, str], root: Path = Path("/"), library: str = "libibverbs.so.1"
) -> str | None:
    """Reason why NCCL's InfiniBand and RoCE transport cannot start here; None if no obstacle is known. `root`: root of
    the file system with the kernel's devices."""
    if environ.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return f"NCCL_IB_DISABLE is {environ['NCCL_IB_DISABLE']}"
    if environ.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET is {environ['NCCL_NET']}"
    try:
        ctypes.CDLL(library)
    except OSError:
        return f"{library} cannot be loaded: the image needs libibverbs1 and ibverbs-providers"
    states = sorted(root.glob("sys/class/infiniband/*/ports/*/state"))
    if not states:
        return "there is no device in /sys/class/infiniband: ask its device plugin for one, or use the node's network"
    if not any("ACTIVE" in state.read_text() for state in states):
        return f"no port of {', '.join(sorted({state.parents[2].name for state in states}))} is active"
    if not any(root.glob("dev/infiniband/uverbs*")):
        return "there is no /dev/infiniband/uverbs*: the device plugin has given the pod no device"
    return None


def over_tcp(config: RunConfig, role: Role, environ: Mapping[str, str]) -> str | None:
    """The resource that requests RDMA, and the reason why NCCL uses TCP all the same; None if it does not."""
    resource = asked_for(config, role, environ)
    if resource is None or (reason := hindrance(environ)) is None:
        return None
    return f"NCCL goes over TCP though the job asks for RDMA ({resource}): {reason}"
