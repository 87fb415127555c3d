"""Broadcasts one weight version to every live generator, and verifies it by digest."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlhf_api.contract.run import Member

from ..transport.http import HttpClient
from . import stream
from .base import Base
from .group import TransferFailed, host_store
from .members import COMMIT, MAKE_ROOM, PROBE_S, RECHECK, SLEEP, Epoch, MembersFailed, Servers, form
from .progress import Staging
from .same_gpu import Window

log = logging.getLogger(__name__)

ATTEMPTS = 4
DEADLINES = 8  # times `timeout_s`: no attempt begins after that
TOLD = 300  # characters of what a worker says that go into a message
STRIKES = 2  # its own failures after which a live server is left out


@dataclass(frozen=True)
class BroadcastReport:
    """Outcome of `Broadcaster.send`: `holders` serve `version` now, their weights proven equal by `digest`; `lost` says
    why each of the others does not, of which the `silent` ones answered nothing: dead, or hung. `bytes` of the version
    went to each holder, and `base_bytes` before them to those that lacked the base; `seconds` and `attempts` for all of
    it, of which the last one took `wire_seconds` to send the version and had each holder paused for `pause_seconds` at
    most."""

    version: int
    epoch: int
    digest: str
    holders: tuple[Member, ...]
    lost: Mapping[Member, str]
    bytes: int
    seconds: float
    attempts: int
    wire_seconds: float = 0.0
    pause_seconds: float = 0.0
    base_bytes: int = 0
    silent: frozenset[Member] = frozenset()


@dataclass
class _Attempt:
    """State of one attempt: the targets left, and the reasons of the others."""

    left: list[Member]
    lost: dict[Member, str] = field(default_factory=dict)
    silent: set[Member] = field(default_factory=set)
    strikes: Counter[Member] = field(default_factory=Counter)

    def drop(self, reasons: Mapping[Member, str]) -> None:
        self.lost.update(reasons)
        self.left = [target for target in self.left if target not in reasons]


class Broadcaster:
    """Sends weights from `device` of this process, reachable by the generators as `host`, in buckets of
    `bucket_bytes`. No step takes longer than `timeout_s`; nor may `tensors()` between two tensors.

    A generator keeps serving its old weights, unpaused, until the new ones are there and proven; then each goes over
    to them by itself. If this process dies none is left between the two.
    """

    def __init__(
        self,
        http: HttpClient,
        *,
        host: str,
        timeout_s: float,
        bucket_bytes: int,
        device: torch.device,
        keep: bool = False,
        takes_turns: bool = False,
        fault: Callable[[str], None] = lambda _point: None,
    ) -> None:
        """`keep`: responses under way go on after the swap, with keys and values of earlier weights. Else they end with
        what they have, and the generators forget those. `takes_turns`: on `device`, where generators sleep while it
        computes.

        `fault` is called at "room", "joined", "bucket:<k>", "staged", "before-commit", "committed" and "asleep",
        for tests."""
        self._servers = Servers(http, timeout_s)
        self._host, self._timeout_s = host, timeout_s
        self._bucket_bytes, self._fault, self._window = bucket_bytes, fault, Window(device)
        self._keep, self._takes_turns = keep, takes_turns
        self._store = host_store(host, timeout_s)
        self._run = secrets.token_hex(4)  # an earlier trainer's epochs had the same numbers
        self._epochs = 0
        self._epoch: Epoch | None = None

    def send(
        self,
        targets: Sequence[Member],
        tensors: Callable[[], Iterator[tuple[str, Tensor]]],
        version: int,
        committing: Callable[[], None] = lambda: None,
        base: Base | None = None,
    ) -> BroadcastReport:
        """Brings the weights that `tensors()` yields to `targets`; calls it anew for each attempt, and always
        exhausts what it returned. With a `base` they are what is trained beside it, and who lacks it gets it first.
        `committing` is called before they pause. Whoever dies, hangs or refuses is in
        `lost`; only `tensors`, those of the base, and `fault` make this raise, and Deposed where a later trainer has
        come."""
        begun = time.monotonic()
        state = _Attempt(list(targets))
        attempts, paused, base_bytes, sent = 0, 0.0, 0, stream.Sent("", 0, 0, 0.0)
        while state.left:
            attempts += 1
            try:
                if self._takes_turns:
                    self._make_room(state.left)
                if base is not None:
                    base_bytes += self._bring(base, state.left, version)
                sent = self._stage(state.left, tensors, version, base.trained if base else {})
                committing()
                paused, doubtful = self._commit(state.left, version, sent, base)
                state.drop(doubtful)
                break
            except TransferFailed as failure:
                log.warning("weight version %d, attempt %d: %s", version, attempts, failure)
                self._leave()
                self._sort_out(state, failure)
                if attempts == ATTEMPTS or time.monotonic() - begun > DEADLINES * self._timeout_s:
                    state.drop(dict.fromkeys(state.left, f"gave up after {attempts} attempts: {failure}"))
            except BaseException:
                self._leave()
                raise
        if state.lost:
            self._leave()
        return BroadcastReport(
            version=version,
            epoch=self._epochs,
            digest=sent.digest,
            holders=tuple(state.left),
            lost=state.lost,
            bytes=sent.nbytes,
            seconds=time.monotonic() - begun,
            attempts=attempts,
            wire_seconds=sent.seconds,
            pause_seconds=paused,
            base_bytes=base_bytes,
            silent=frozenset(state.silent),
        )

    def changed(self, holders: Sequence[Member]) -> str:
        """Asks `holders` to verify their serving weights (`WeightStatus.rlhf_recheck`); returns the names of those
        whose weights differ from what was sent, with the part, or ''. Those that do not answer in time are skipped."""
        answers, _ = self._servers.call(holders, "POST", RECHECK).settled()
        return _list_changes(answers)

    def sleep(self, holders: Sequence[Member]) -> tuple[str, dict[Member, str]]:
        """Has `holders` verify their serving weights once more, and give their memory back until `send`; returns what
        `changed` does, and why some did not."""
        answers, failed = self._servers.call(holders, "POST", SLEEP).settled()
        self._fault("asleep")
        return _list_changes(answers), failed

    def close(self) -> None:
        self._leave()

    def _join(self, targets: Sequence[Member]) -> Epoch:
        if self._epoch is None or self._epoch.members != frozenset(targets):
            self._leave()
            self._epochs += 1
            self._epoch = form(
                self._servers,
                self._store,
                host=self._host,
                name=f"{self._run}.{self._epochs}",
                targets=targets,
                timeout_s=self._timeout_s,
                window=self._window,
            )
            self._fault("joined")
        return self._epoch

    def _make_room(self, targets: Sequence[Member]) -> None:
        """Gives sleeping generators memory for weights; one that has just started has all of it first."""
        self._servers.call(targets, "POST", SLEEP).results()
        self._servers.call(targets, "POST", MAKE_ROOM).results()
        self._fault("room")

    def _bring(self, base: Base, targets: Sequence[Member], version: int) -> int:
        """Sends the base to every worker that lacks it; returns the number of bytes per worker. In an epoch of its own:
        workers that have the base are not delayed, and have no memory for a second one."""
        lacking = [
            target
            for target, answer in self._servers.status(targets).results().items()
            if any(worker["base"] != base.fingerprint for worker in answer["results"])
        ]
        if not lacking:
            return 0
        sent = self._stage(lacking, base.tensors, version, base.itself)
        self._servers.call(lacking, "POST", "/finish_weight_update").results()
        names = ", ".join(target.name for target in lacking)
        log.info("%s: received the frozen weights, %d bytes", names, sent.nbytes)
        return sent.nbytes

    def _stage(
        self,
        targets: Sequence[Member],
        tensors: Callable[[], Iterator[tuple[str, Tensor]]],
        version: int,
        part: Mapping[str, Any],
    ) -> stream.Sent:
        """Sends the weights until every worker has staged them beside the serving ones; `part`: fields of
        `ReceiveInfo`, for anything but whole weights."""
        epoch = self._join(targets)
        epoch.updates += 1
        self._servers.call(targets, "POST", "/start_weight_update").results()
        info = {"epoch": epoch.name, "update": epoch.updates, "version": version, **part}
        self._servers.call(targets, "POST", "/update_weights", {"update_info": info}).results()
        staging = Staging(self._servers, targets, version)
        sent = stream.send(
            epoch.group, epoch.updates, tensors(), self._bucket_bytes, staging.check, self._fault
        )
        staging.complete(sent.digest, self._timeout_s)
        stream.clear(epoch.group, epoch.updates, sent)
        self._fault("staged")
        return sent

    def _commit(
        self, targets: Sequence[Member], version: int, sent: stream.Sent, base: Base | None
    ) -> tuple[float, dict[Member, str]]:
        """Commits what was sent; returns the longest pause in seconds, and the members that failed with the reason."""
        self._fault("before-commit")
        expected = {"version": version, "digest": sent.digest, "keep": self._keep}
        if base is not None:
            expected["base"] = base.fingerprint
        done, doubtful = self._servers.call(targets, "POST", COMMIT, expected).settled()
        self._fault("committed")
        return max((answer["pause_seconds"] for answer in done.values()), default=0.0), doubtful

    def _sort_out(self, state: _Attempt, failure: TransferFailed) -> None:
        """Drops members that do not answer; if all do, those that have failed twice by themselves."""
        _, silent = self._servers.status(state.left, timeout=PROBE_S).settled()
        if silent:
            state.silent.update(silent)
            reasons = failure.reasons if isinstance(failure, MembersFailed) else {}
            state.drop({target: reasons.get(target, reason) for target, reason in silent.items()})
        elif isinstance(failure, MembersFailed):
            state.strikes.update(failure.reasons.keys())
            state.drop({t: reason for t, reason in failure.reasons.items() if state.strikes[t] >= STRIKES})

    def _leave(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch:
            epoch.group.abort()


def _list_changes(answers: Mapping[Member, Any]) -> str:
    """The first workers whose serving weights are not those that were sent, with the part; '' if there are none."""
    changes = [
        f"{target.name} (worker {worker['rank']}): {str(worker['changed'])[:TOLD]}"
        for target, answer in answers.items()
        for worker in answer["results"]
        if worker["changed"] is not None
    ]
    return "; ".join(changes[:3])
