"""Publishes the policy's weights: which generator holds which version, and how each gets the next."""

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import torch
from torch import Tensor, distributed

from rlhf_api.contract.report import MemberStatus
from rlhf_api.contract.run import Member
from rlhf_api.contract.timeline import WAIT
from rlhf_api.roles import Role

from ..dispatch.roster import Stopped, Unavailable
from ..models.trained_model import TrainedModel
from ..process import progress
from ..process.gpu_turns import GpuTurns
from ..process.timeline import RECORDER
from ..ranks.context import TrainerContext
from .base import Base
from .broadcaster import Broadcaster, BroadcastReport

log = logging.getLogger(__name__)

REFUSALS = 3
"""Refusals of weights by a live generator, or rounds of requests in a row without a new token, after which a run fails.
"""


class Publisher:
    """The generators that hold weights of the policy, all of one version. Its methods are collectives, but for those of
    rank 0 that say so.

    A generator that dies costs the weight group one epoch; one that is new, or back, gets the current weights before
    it is asked anything. Of a policy with frozen weights, an adapter's or others, only what is trained travels with
    each version, and the frozen ones once to each generator.
    """

    def __init__(
        self,
        ctx: TrainerContext,
        policy: TrainedModel,
        sync: Broadcaster | None,
        *,
        turns: GpuTurns | None = None,
    ) -> None:
        """`sync` on rank 0 only. `turns`: those of this rank's GPU, where generators sleep while it computes."""
        self._ctx, self._policy, self._sync = ctx, policy, sync
        self._members: list[Member] = []
        self._refusals: Counter[str] = Counter()  # of the newest weights, by uid
        self._deadline = 0.0  # for generators that do not answer
        self._holders: dict[str, Member] = {}
        self._version = -1
        self._turns, self._changed = turns, ""
        self._figures = {"broadcast_bytes": 0.0, "generators_paused_seconds": 0.0}

    def publish(self, version: int, committing: Callable[[], None]) -> None:
        """Broadcasts the policy's weights to every generator that answers; waits for at least one. Responses under way
        stop before the new weights or go on with them (`rollout.inFlight`); the round of their requests is to be ended,
        and another begun. `committing` is called on rank 0 before generators swap weights.

        Raises:
            Unavailable: no generator took the weights within its start-up time, or all refused them three times.
            Stopped: the run is to stop, on every rank.
        """
        if self._turns is not None:
            if self._version < 0:
                gc.collect()  # what loading the models has left
            torch.cuda.empty_cache()  # the generators take what it frees
            self._turns.end()
            distributed.barrier()
        self._refusals.clear()
        self._deadline = time.monotonic() + self._ctx.spec.generator.startup_timeout_seconds
        order = self._wait(self._wait_for_members)
        while order != "stop":
            with RECORDER.measure("publish"):
                is_sent = self._sent(version, committing)
            if is_sent:
                self._version = version
                return
            order = self._wait(self._wait_again)
        raise Stopped("stopped while waiting for the generators")

    def ensure_current(self, version: int, committing: Callable[[], None]) -> None:
        """Publishes the policy's version where a generator responds and has no weights, or had some and responds no
        more."""
        if self._ctx.ranks.agree(self._are_members_other):
            self.publish(version, committing)

    def yield_gpus(self) -> None:
        """Has generators that take turns with the trainer give up their GPUs, and the weights with these: before the
        next request they are published again. Returns on every rank once they have, and no engine starts there. Raises
        TimeoutError where one does not end its start."""
        if self._turns is not None:
            with RECORDER.measure(f"{WAIT}GPUs"):
                self._changed = self._ctx.ranks.broadcast_str(self._send_to_sleep)
                self._turns.begin(self._ctx.spec.generator.startup_timeout_seconds, progress.sign)

    @property
    def version(self) -> int:
        """The weight version that the generators hold; -1 before the first."""
        return self._version

    def figures(self) -> dict[str, float]:
        """Since the last call: the most bytes that one generator received, and its longest pause; on rank 0."""
        figures, self._figures = self._figures, dict.fromkeys(self._figures, 0.0)
        return figures

    def changed(self) -> str:
        """Names of generators whose served weights differ from what was sent, with those weights; '' if none."""
        if self._turns is not None:  # verified before they went to sleep
            return self._changed
        return self._ctx.ranks.broadcast_str(lambda: self._sync.changed(self.holders) if self._sync else "")

    @property
    def holders(self) -> list[Member]:
        """Generators with weights, on rank 0."""
        return list(self._holders.values())

    def drop(self, failed: Mapping[str, str]) -> None:
        """Marks generators that failed in a round, by uid, as without weights; on rank 0."""
        for uid in failed:
            self._holders.pop(uid, None)

    def _send_to_sleep(self) -> str:
        assert self._sync is not None
        changed, failed = self._sync.sleep(self.holders)
        for target, reason in failed.items():
            log.warning("%s did not give its GPU up: %s", target.name, reason)
        self._holders.clear()
        return changed

    def _are_members_other(self) -> bool:
        """True if those that respond are not those that hold weights; on rank 0."""
        assert self._ctx.services is not None
        answering = {m.uid for m in self._ctx.services.roster.answering(Role.GENERATOR)}
        return answering != set(self._holders)

    def _wait(self, order: Callable[[], str]) -> str:
        """The order after a wait for generators, which is rank 0's."""
        with RECORDER.measure(f"{WAIT}generators"):
            return self._ctx.ranks.broadcast_str(order)

    def _wait_for_members(self) -> str:
        """Waits, on rank 0, for as long as the generators take to start."""
        assert self._ctx.services is not None
        role, roster = self._ctx.spec.generator, self._ctx.services.roster
        required = role.replicas if self._version < 0 else 1
        try:
            self._members = roster.wait(Role.GENERATOR, required, role.startup_timeout_seconds)
        except Stopped:
            return "stop"
        return "send"

    def _wait_again(self) -> str:
        """Waits, on rank 0, after members that answered did not take the weights: they may hang until their host ends
        them."""
        return "stop" if self._ctx.stop.is_set() else self._wait_for_members()

    def _sent(self, version: int, committing: Callable[[], None]) -> bool:
        """True if a generator has taken the weights, on every rank."""
        ranks = self._ctx.ranks
        if ranks.first:
            return (
                ranks.broadcast_str(lambda: "sent" if self._send(version, committing) else "again") == "sent"
            )
        while (message := ranks.broadcast_str(lambda: "")) not in ("sent", "again"):
            for _ in self._tensors(message):  # gathering the weights is a collective
                pass
        return message == "sent"

    def _send(self, version: int, committing: Callable[[], None]) -> bool:
        """Sends the weights, on rank 0, to the members that it has waited for."""
        assert self._sync is not None
        members = self._members
        base = self._base()
        part = "whole" if base is None else "version"
        report = self._sync.send(members, partial(self._announced, part), version, committing, base)
        for target, reason in report.lost.items():
            log.warning("%s did not take weight version %d: %s", target.name, version, reason)
        if not report.holders:
            self._give_up(report, members)
            return False
        self._figures["broadcast_bytes"] += report.bytes + report.base_bytes
        paused = self._figures["generators_paused_seconds"]
        self._figures["generators_paused_seconds"] = max(paused, report.pause_seconds)
        held = {target.uid for target in report.holders}
        for target in report.holders:
            if target.uid not in self._holders:
                log.info("%s joined with weight version %d", target.name, version)
        self._holders = {member.uid: member for member in members if member.uid in held}
        self._report_broadcast(report)
        return True

    def _base(self) -> Base | None:
        """The part of the policy that generators keep. Those that sleep keep nothing, and are to have more room for
        their cache, so that frozen weights are one of two parts that travel only where an adapter is merged into
        them."""
        if self._turns is not None and self._policy.adapter is None:
            return None
        return Base.of(self._policy, partial(self._announced, "base"))

    def _give_up(self, report: BroadcastReport, members: Sequence[Member]) -> None:
        """Raises Unavailable for good where no generator took the weights. One that does not answer, dead or hung, is
        replaced by its host, which may take as long as a start; one that answers may refuse three times."""
        self._refusals.update(target.uid for target in report.lost if target not in report.silent)
        late = bool(report.silent) and time.monotonic() > self._deadline
        if late or all(self._refusals[member.uid] >= REFUSALS for member in members):
            failures = "; ".join(f"{target.name}: {reason}" for target, reason in report.lost.items())
            raise Unavailable(f"no generator took weight version {report.version}: {failures}")

    def _announced(self, part: str) -> Iterator[tuple[str, Tensor]]:
        """A part of the policy, after telling the other ranks to gather it too."""
        self._ctx.ranks.broadcast_str(lambda: part)
        yield from self._tensors(part)

    def _tensors(self, part: str) -> Iterator[tuple[str, Tensor]]:
        parts = {
            "base": self._policy.base_tensors,
            "version": self._policy.version_tensors,
            "whole": self._policy.named_tensors,
        }
        return parts[part]()

    def _report_broadcast(self, report: BroadcastReport) -> None:
        assert self._ctx.services is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._ctx.report(
            members=tuple(
                MemberStatus(
                    role=Role.GENERATOR,
                    name=member.name,
                    uid=member.uid,
                    ready=member.uid in self._holders,
                    weight_version=report.version if member.uid in self._holders else None,
                    epoch=report.epoch if member.uid in self._holders else None,
                    last_sync_time=now if member.uid in self._holders else None,
                )
                for member in self._ctx.services.control.members(Role.GENERATOR)
            )
        )
