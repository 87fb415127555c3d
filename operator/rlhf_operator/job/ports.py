"""TCP ports of a job's pods: the same for all if each pod has a network of its own, derived from the job's uid if pods
share their node's; pure.

In the node's network the API server declares container ports as host ports, and the scheduler puts no two pods with the
same one on a node. So every pod of a job has its own, and two jobs rarely collide.
"""

import hashlib

from rlhf_api.roles import UNTRUSTED, Role

PORT = 8000
"""HTTP port of every role."""
MASTER_PORT = 29500
"""Rendezvous port of the trainer's ranks, and of a generator's pods."""
HOST_PORTS = range(20000, 30000)
"""Below the NodePort range and the kernels' ephemeral ports."""


def http_port(job_uid: str, role: Role, index: int) -> int:
    """HTTP port in the node's network, where no pod of untrusted code is; independent of the number of replicas."""
    roles = [each for each in Role if each not in UNTRUSTED]
    return _draw_port(job_uid, 1 + index * len(roles) + roles.index(role))


def master_port(job_uid: str) -> int:
    """Rendezvous port of the trainer in the node's network."""
    return _draw_port(job_uid, 0)


def group_port(job_uid: str, index: int) -> int:
    """Rendezvous port of the pods of generator `index`, in the node's network."""
    return _draw_port(job_uid, -1 - index)


def _draw_port(job_uid: str, place: int) -> int:
    first = int.from_bytes(hashlib.sha256(job_uid.encode()).digest()[:4])
    return HOST_PORTS[(first + place) % len(HOST_PORTS)]
