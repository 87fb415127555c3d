"""TCP ports of a job's pods: the same for all where each pod has a network of its own, drawn for the job where its pods
share their node's; pure.

On the node's network the API server declares a container's ports as host ports, and the scheduler puts no two pods with
the same one on a node. So every pod of a job has its own, and two jobs rarely have the same.
"""

import hashlib

from rlhf_api.roles import Role

PORT = 8000
"""HTTP of every role."""
MASTER_PORT = 29500
"""The rendezvous of the trainer's ranks, and of those of one generator."""
HOST_PORTS = range(20000, 30000)
"""Below those that Kubernetes gives to services of type NodePort and kernels to outgoing connections."""


def http_port(job_uid: str, role: Role, index: int) -> int:
    """On the node's network; a pod keeps it whatever the number of replicas."""
    return _drawn(job_uid, 1 + index * len(Role) + list(Role).index(role))


def master_port(job_uid: str) -> int:
    """On the node's network."""
    return _drawn(job_uid, 0)


def group_port(job_uid: str, index: int) -> int:
    """On the node's network: the rendezvous of the pods of the generator with this index."""
    return _drawn(job_uid, -1 - index)


def _drawn(job_uid: str, place: int) -> int:
    first = int.from_bytes(hashlib.sha256(job_uid.encode()).digest()[:4])
    return HOST_PORTS[(first + place) % len(HOST_PORTS)]
