"""The generators as the training loop sees them: one call to give them weights, one to get responses."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime

from torch import Tensor

from rlhf_api.roles import Role
from rlhf_api.run import Member
from rlhf_api.status import MemberStatus

from ..comms.roster import Stopped, Unavailable
from ..context import TrainerContext
from ..models.trained_model import TrainedModel
from ..records import Prompt, Rollout
from ..weights.broadcaster import SyncReport, WeightSync
from .arrivals import Arrivals, Responses
from .dispatch import Round, start_round
from .engine import EngineClient

log = logging.getLogger(__name__)

REFUSALS = 3
"""How often generators that live may refuse weights, or fail at every prompt, before the run fails."""


class Fleet:
    """The generators that hold the policy's current weights. Its methods are collectives.

    A generator that dies costs its prompts a detour and the weight group one epoch; one that is new, or
    back, gets the current weights before it is asked anything.
    """

    def __init__(
        self, ctx: TrainerContext, policy: TrainedModel, sync: WeightSync | None, client: EngineClient | None
    ) -> None:
        """`sync` and `client` on rank 0 only."""
        self._ctx, self._policy, self._sync, self._client = ctx, policy, sync, client
        self._holders: dict[str, Member] = {}
        self._version = self._current = -1

    def publish(self, version: int) -> None:
        """Broadcasts the policy's weights to every generator that answers; waits for at least one.

        Raises:
            Unavailable: no generator took the weights within its start-up time.
            Stopped: the run is to stop, on every rank.
        """
        if self._ctx.services is not None:
            end = "done"
            try:
                self._send(version)
            except Stopped:
                end = "stop"
            self._say(end)
        else:
            while (end := self._say("")) == "gather":
                for _ in self._policy.named_tensors():  # gathering the weights is a collective
                    pass
        if end == "stop":
            raise Stopped("stopped while waiting for the generators")
        self._version = self._current = version

    @property
    def version(self) -> int:
        """The weight version that the generators hold; -1 before the first."""
        return self._version

    def move_on(self, version: int) -> None:
        """The policy has `version` now; the generators keep theirs until `publish`, or until a new one joins."""
        self._current = version

    def answer(self, prompts: Sequence[Prompt]) -> Responses:
        """The responses to all prompts, in their order; see `stream`."""
        (responses,) = self.stream(prompts, None)
        return responses

    def stream(self, prompts: Sequence[Prompt], size: int | None) -> Iterator[Responses]:
        """The responses to all prompts, those to `size` prompts at a time as they come, a short rest with the last; all
        at once for None.

        On rank 0; on the others as many empty batches. Prompts of a generator that fails go to the others; when none
        is left they wait for a replacement. Requests under way are cancelled when this is left before its end.

        Raises:
            Unavailable: generators come, and fail at every prompt, or refuse every one.
            Stopped: the run is to stop, on every rank.
        """
        if self._ctx.ranks.agree(self._someone_is_new):
            self.publish(self._current)
        batches = iter(()) if self._client is None else self._batches(self._client, prompts, size)
        while True:
            found: Responses | None = None

            def following() -> str:
                nonlocal found
                try:
                    found = next(batches)
                except StopIteration:
                    return "end"
                except Stopped:
                    return "stop"
                return "publish" if found is None else "responses"

            match self._say(following):
                case "end":
                    return
                case "stop":
                    raise Stopped("stopped while the generators were at work")
                case "publish":
                    self.publish(self._current)
                case _:
                    yield found or Responses()

    def _batches(
        self, client: EngineClient, prompts: Sequence[Prompt], size: int | None
    ) -> Iterator[Responses | None]:
        """On rank 0. None: nobody is left to ask; weights must go out before the next batch is asked for."""
        places = {prompt.id: place for place, prompt in enumerate(prompts)}
        whole = 1 if size is None else max(1, len(prompts) // size)
        arrivals, waiting, fruitless, made = Arrivals(self._ctx.stop), list(prompts), 0, 0
        refused: dict[str, str] = {}
        requeued: list[str] = []
        while waiting:
            before = arrivals.count
            round_ = self._start(client, waiting, arrivals)
            try:
                while size is not None and made < whole - 1 and arrivals.wait(size):
                    yield Responses(_in_order(arrivals.take(size), places))
                    made += 1
                arrivals.wait(None)
            finally:
                round_.cancel()
            outcome = round_.result()
            waiting = outcome.unanswered
            refused |= {prompt.id: why for prompt, why in outcome.refused}
            requeued += [prompt.id for prompt in outcome.requeued]
            for uid in outcome.failed:
                self._holders.pop(uid, None)
            fruitless = fruitless + 1 if outcome.failed and arrivals.count == before else 0
            if fruitless == REFUSALS:
                why = "; ".join(outcome.failed.values())
                raise Unavailable(f"no generator answers: {REFUSALS} times in a row, all failed: {why}")
            if waiting:
                yield None
        if refused and len(refused) == len(prompts):
            raise Unavailable(f"the generators refuse every prompt: {next(iter(refused.values()))}")
        yield Responses(_in_order(arrivals.take(None), places), requeued, refused)

    def _start(self, client: EngineClient, prompts: Sequence[Prompt], arrivals: Arrivals) -> "Future[Round]":
        assert self._ctx.services is not None
        role = self._ctx.spec.generator
        round_ = start_round(
            self._ctx.services.http,
            client,
            prompts,
            list(self._holders.values()),
            self._version,
            current=self._present,
            concurrent=role.concurrent_requests,
            silence=role.timeout_seconds,
            left=lambda count: self._ctx.report(queue=count),
            arrived=arrivals.put,
        )
        arrivals.watch(round_)
        return round_

    def _say(self, what: str | Callable[[], str]) -> str:
        """Rank 0's word, on every rank."""
        said = self._ctx.ranks.share(lambda: ({}, {"next": what if isinstance(what, str) else what()}))
        return str(said[1]["next"])

    def _someone_is_new(self) -> bool:
        assert self._ctx.services is not None
        answering = {m.uid for m in self._ctx.services.roster.answering(Role.GENERATOR)}
        return answering != set(self._holders)

    def _present(self) -> dict[str, Member]:
        assert self._ctx.services is not None
        return self._ctx.services.control.present(Role.GENERATOR)

    def _send(self, version: int) -> None:
        assert self._ctx.services is not None
        assert self._sync is not None
        role, roster = self._ctx.spec.generator, self._ctx.services.roster
        wanted = role.replicas if self._version < 0 else 1
        failures: Counter[str] = Counter()
        while True:
            members = roster.wait(Role.GENERATOR, wanted, role.startup_timeout_seconds)
            report = self._sync.send(members, self._announced, version)
            for target, reason in report.lost.items():
                log.warning("%s did not take weight version %d: %s", target.name, version, reason)
            if report.holders:
                break
            # Whoever died is being replaced and may try again; whoever lives and refuses does so three times.
            failures.update(target.uid for target in report.lost)
            if all(failures[member.uid] >= REFUSALS for member in members):
                why = "; ".join(f"{target.name}: {reason}" for target, reason in report.lost.items())
                raise Unavailable(f"no generator took weight version {version}: {why}")
        held = {target.uid for target in report.holders}
        for target in report.holders:
            if target.uid not in self._holders:
                log.info("%s joined with weight version %d", target.name, version)
        self._holders = {member.uid: member for member in members if member.uid in held}
        self._tell(report)

    def _announced(self) -> Iterator[tuple[str, Tensor]]:
        """The weights, after telling the other ranks to gather them too."""
        self._say("gather")
        yield from self._policy.named_tensors()

    def _tell(self, report: SyncReport) -> None:
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


def _in_order(rollouts: Sequence[Rollout], places: Mapping[str, int]) -> list[Rollout]:
    """By the order of their prompts; the responses to one prompt stay in theirs."""
    return sorted(rollouts, key=lambda rollout: places[rollout.prompt.id])
