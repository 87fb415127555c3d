"""Assigns loopback ports to the processes of a job."""

import random
import socket
from collections import deque
from collections.abc import Sequence

from rlhf_api.contract.run import Process, RunConfig, pods_each, process_name, replicas, roles_of
from rlhf_api.errors.problem import InvalidJob, Problem

HOST = "127.0.0.1"
_RENDEZVOUS = "the trainers' rendezvous"
# Below the ephemeral ports (32768 up): a role may take a minute until it listens, and an outgoing connection of
# another process could take its port meanwhile.
_AUTOMATIC = range(15000, 32000)
_reserved = deque[socket.socket](maxlen=256)
"""Sockets bound to the last assigned ports, not listening: until this process ends, no other job on the machine gets
them. A role's server can still listen there, since both set SO_REUSEADDR."""


def is_free(port: int) -> bool:
    """True if a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def reserve(port: int) -> bool:
    """Reserves a port unless somebody listens there or has reserved it."""
    bound = socket.socket()
    try:
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        return False
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _reserved.append(bound)
    return True


def place(config: RunConfig, base: int | None) -> list[Process]:
    """Every process of a job with its port, trainers first. Raises InvalidJob if a port is taken."""
    spec = config.spec
    servers = [(role, i) for role in roles_of(spec) for i in range(replicas(spec, role))]
    meeting = {
        (role, i): f"{role.value}-{i}'s rendezvous" if pods_each(spec, role) > 1 else _RENDEZVOUS
        for role, i in servers
    }
    named = [process_name(role, i, 0) for role, i in servers]
    ports = assign([*named, *dict.fromkeys([_RENDEZVOUS, *meeting.values()])], base)
    return [
        Process(role, i, ports[name], HOST, f"{HOST}:{ports[meeting[role, i]]}", rank)
        for (role, i), name in zip(servers, named, strict=True)
        for rank in range(pods_each(spec, role))
    ]


def assign(names: Sequence[str], base: int | None) -> dict[str, int]:
    """A port for each name: `base`, `base + 1` ... in order, or without a base free ones, which are reserved.

    Raises:
        InvalidJob: a port is taken, or beyond 65535.
    """
    if base is None:
        candidates = iter(random.sample(_AUTOMATIC, len(_AUTOMATIC)))
        ports = dict(zip(names, filter(reserve, candidates), strict=False))
        if len(ports) < len(names):
            raise InvalidJob([Problem("ports", f"fewer than {len(names)} of {_AUTOMATIC} are free")])
        return ports
    last = base + len(names) - 1
    if not 1 <= base <= last <= 65535:
        raise InvalidJob([Problem("--base-port", f"ports {base} to {last} must lie in 1 to 65535")])
    ports = {name: base + i for i, name in enumerate(names)}
    problems = [
        Problem(
            "--base-port",
            f"port {port} of {name} is taken; stop what listens there, choose another --base-port "
            f"({base} to {last} must be free), or leave it out",
        )
        for name, port in ports.items()
        if not is_free(port)
    ]
    if problems:
        raise InvalidJob(problems)
    return ports
