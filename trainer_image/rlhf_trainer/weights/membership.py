"""Membership epoch: the generators in the weight group with the trainer."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from rlhf_api.contract.run import Member

from .group import Group, publish_epoch
from .members import Servers

PROBE_S = 2.0  # a live server answers for its workers within this


@dataclass
class Epoch:
    """Epoch `name`, unique over all trainer processes of the run, with its group; `updates`: number of updates sent in
    it.
    """

    name: str
    members: frozenset[Member]
    group: Group
    updates: int = 0


def form(
    servers: Servers,
    store: TCPStore,
    *,
    host: str,
    name: str,
    targets: Sequence[Member],
    timeout_s: float,
    device: torch.device,
) -> Epoch:
    """A new epoch of all of `targets`; the one before, if any, ends.

    Raises:
        TransferFailed: someone did not come. Those who did are free again.
    """
    publish_epoch(store, name)
    ranks, size, secret = {}, 1, secrets.token_hex(32)
    for target, answer in servers.call(targets, "GET", "/get_world_size").results().items():
        ranks[target] = size
        size += answer["world_size"]

    def invitation(target: Member) -> dict[str, Any]:
        info: dict[str, Any] = {"host": host, "port": store.port, "epoch": name, "secret": secret}
        info |= {"rank_offset": ranks[target], "world_size": size, "timeout_s": timeout_s}
        return {"init_info": info}

    joining = servers.call(targets, "POST", "/init_weight_transfer_engine", invitation, timeout=2 * timeout_s)
    try:
        group = Group(store, name, secret, 0, size, timeout_s, device, joining.check)
        joining.results()
    except BaseException:
        joining.settled(PROBE_S)
        raise
    # An update abandoned before its commit is still open. Joining made the worker drop what it had received, so
    # finishing it changes nothing.
    status = servers.status(targets).results()
    unfinished = [t for t, answer in status.items() if any(worker["open"] for worker in answer["results"])]
    servers.call(unfinished, "POST", "/finish_weight_update").results()
    return Epoch(name, frozenset(targets), group)
