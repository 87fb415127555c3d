"""Calls to the administrative paths of several vLLM servers at once, and the epoch in which they form one group."""

import concurrent.futures
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from torch._C._distributed_c10d import TCPStore

from rlhf_api.contract.run import Member

from ..transport.http import Deposed, HttpClient, HttpError
from .group import Group, TransferFailed, publish_epoch
from .same_gpu import Window

COMMIT = "/commit"
"""POST: pause, swap to the staged weights, check their digest, resume; in one call."""
RECHECK = "/recheck"
"""POST: verify a slice of the serving weights again, once all of them are verified."""
SLEEP, MAKE_ROOM = "/sleep", "/make_room"
"""POST: verify all of the serving weights, then give the GPU's memory back; take memory for new weights."""

PROBE_S = 2.0  # a live server answers for its workers within this


class MembersFailed(TransferFailed):
    """Some servers refused, did not answer or disagreed: `reasons` says why, for each."""

    def __init__(self, reasons: Mapping[Member, str]) -> None:
        super().__init__("; ".join(f"{target.name}: {reason}" for target, reason in reasons.items()))
        self.reasons = dict(reasons)


class Servers:
    """Calls servers through `http`, by default with a timeout of `timeout_s`."""

    def __init__(self, http: HttpClient, timeout_s: float) -> None:
        self._http, self._timeout_s = http, timeout_s

    def call(
        self,
        targets: Iterable[Member],
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float | None = None,
    ) -> "Calls":
        """Starts the same call to each; `body` may be a function of the target."""
        timeout = timeout or self._timeout_s
        futures = {}
        for target in targets:
            filled = body(target) if callable(body) else body
            url = target.address + path
            futures[target] = self._http.start(self._http.json(method, url, filled, timeout=timeout))
        return Calls(path, futures, timeout)

    def status(self, targets: Iterable[Member], *, timeout: float | None = None) -> "Calls":
        """Answers: `WeightStatus.rlhf_status` of each worker, under "results"."""
        return self.call(targets, "POST", "/collective_rpc", {"method": "rlhf_status"}, timeout=timeout)


class Calls:
    """Calls in progress, one to each of several targets. Its methods raise Deposed if a target answered so."""

    def __init__(
        self, what: str, futures: "dict[Member, concurrent.futures.Future[Any]]", timeout: float
    ) -> None:
        self._what, self._futures, self._timeout = what, futures, timeout

    def done(self) -> bool:
        """True once all have answered or failed, or one has failed."""
        return all(f.done() for f in self._futures.values()) or any(
            f.done() and f.exception() for f in self._futures.values()
        )

    def check(self) -> None:
        """Raises MembersFailed where a call has failed already."""
        self._raise_deposed()
        if failed := {
            t: self._failure_reason(f) for t, f in self._futures.items() if f.done() and f.exception()
        }:
            raise MembersFailed(failed)

    def results(self) -> dict[Member, Any]:
        """All answers, each call within its own deadline; raises MembersFailed as soon as one failed."""
        concurrent.futures.wait(self._futures.values(), return_when=concurrent.futures.FIRST_EXCEPTION)
        self.check()
        return {target: future.result() for target, future in self._futures.items()}

    def settled(self, timeout: float | None = None) -> tuple[dict[Member, Any], dict[Member, str]]:
        """Answers, and the reasons of those without; calls unanswered after `timeout` s are given up."""
        concurrent.futures.wait(self._futures.values(), timeout)
        self._raise_deposed()
        answers, failed = {}, {}
        for target, future in self._futures.items():
            if future.done() and not future.exception():
                answers[target] = future.result()
            else:
                failed[target] = self._failure_reason(future)
                future.cancel()
        return answers, failed

    def _raise_deposed(self) -> None:
        for future in self._futures.values():
            if future.done() and isinstance(error := future.exception(), Deposed):
                raise error

    def _failure_reason(self, future: "concurrent.futures.Future[Any]") -> str:
        error = future.exception() if future.done() else TimeoutError()
        match error:
            case TimeoutError():
                return f"no answer to {self._what} within {self._timeout:g} s"
            case HttpError():
                return f"HTTP {error.status} to {self._what}: {error.body[:300]}"
            case aiohttp.ClientError():
                return f"{self._what}: {error or type(error).__name__}"
            case _:
                return f"{self._what}: {error!r}"


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
    window: Window,
) -> Epoch:
    """A new epoch of all of `targets`, who get what is on the window's GPU; the one before, if any, ends.

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
        group = Group(store, name, secret, 0, size, timeout_s, window.device, joining.check, window)
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
