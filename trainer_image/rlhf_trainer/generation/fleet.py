"""The generators as the training loop sees them: one call to give them weights, one to get answers."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from torch import Tensor

from rlhf_api.roles import Role
from rlhf_api.run import Member
from rlhf_api.status import MemberStatus

from ..comms.ranks import Message
from ..comms.roster import Unavailable
from ..context import TrainerContext
from ..models.trained_model import TrainedModel
from ..records import Prompt, Rollout
from ..weights.broadcaster import SyncReport, WeightSync
from .arrivals import Answers, Arrivals
from .vllm import VllmClient

log = logging.getLogger(__name__)

REFUSALS = 3
"""How often generators that live may refuse weights, or fail at every prompt, before the run fails."""


class Fleet:
    """The generators that hold the policy's current weights. Its methods are collectives.

    A generator that dies costs its unanswered prompts a detour and the weight group one epoch; one that is new, or
    back, gets the current weights before it is asked anything.
    """

    def __init__(
        self, ctx: TrainerContext, policy: TrainedModel, sync: WeightSync | None, client: VllmClient | None
    ) -> None:
        """`sync` and `client` on rank 0 only."""
        self._ctx, self._policy, self._sync, self._client = ctx, policy, sync, client
        self._holders: dict[str, Member] = {}
        self._version = self._current = -1

    def publish(self, version: int) -> None:
        """Broadcasts the policy's weights to every generator that answers; waits for at least one.

        Raises:
            Unavailable: no generator took the weights within its start-up time.
        """
        if self._ctx.services is not None:
            self._send(version)
            self._ctx.ranks.agree(lambda: False)  # the last broadcast is done
        else:
            while self._ctx.ranks.agree(bool):
                for _ in self._policy.named_tensors():  # gathering the weights is a collective
                    pass
        self._version = self._current = version

    @property
    def version(self) -> int:
        """The weight version that the generators hold; -1 before the first."""
        return self._version

    def move_on(self, version: int) -> None:
        """The policy has `version` now; the generators keep theirs until `publish`, or until a new one joins."""
        self._current = version

    def answer(self, prompts: Sequence[Prompt]) -> Answers:
        """The answers to all prompts, in their order; see `stream`."""
        (answers,) = self.stream(prompts, None)
        return answers

    def stream(self, prompts: Sequence[Prompt], size: int | None) -> Iterator[Answers]:
        """The answers to all prompts, those to `size` prompts at a time as they come, a short rest with the last; all
        at once for None.

        On rank 0; on the others as many empty batches. Prompts of a generator that fails go to the others; when none
        is left they wait for a replacement.

        Raises:
            Unavailable: generators come, and fail at every prompt, or refuse every one.
        """
        if self._ctx.ranks.agree(self._someone_is_new):
            self.publish(self._current)
        batches = iter(()) if self._client is None else self._batches(self._client, prompts, size)
        while True:
            found: Answers | None = None

            def next_of_all() -> Message:
                nonlocal found
                try:
                    found = next(batches)
                except StopIteration:
                    return {}, {"next": "end"}
                return {}, {"next": "publish" if found is None else "answers"}

            happened = self._ctx.ranks.share(next_of_all)[1]["next"]
            if happened == "end":
                return
            if happened == "publish":
                self.publish(self._current)
            else:
                yield found or Answers()

    def _batches(
        self, client: VllmClient, prompts: Sequence[Prompt], size: int | None
    ) -> Iterator[Answers | None]:
        """On rank 0. None: nobody is left to ask; weights must go out before the next batch is asked for."""
        places = {prompt.id: place for place, prompt in enumerate(prompts)}
        whole = 1 if size is None else max(1, len(prompts) // size)
        arrivals, waiting, fruitless, made = Arrivals(), list(prompts), 0, 0
        refused: dict[str, str] = {}
        requeued: list[str] = []
        while waiting:
            before = arrivals.count
            round_ = client.start(
                waiting,
                list(self._holders.values()),
                self._version,
                current=self._present,
                left=lambda count: self._ctx.report(queue=count),
                arrived=arrivals.put,
            )
            arrivals.watch(round_)
            while size is not None and made < whole - 1 and arrivals.wait(size):
                yield Answers(_in_order(arrivals.take(size), places))
                made += 1
            arrivals.wait(None)
            outcome = round_.result()
            waiting = outcome.unanswered
            refused |= outcome.refused
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
        yield Answers(_in_order(arrivals.take(None), places), requeued, refused)

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
        self._ctx.ranks.agree(lambda: True)
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
    """By the order of their prompts; the answers to one prompt stay in theirs."""
    return sorted(rollouts, key=lambda rollout: places[rollout.prompt.id])
