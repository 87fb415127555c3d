"""The generators as the training loop sees them: one call to give them weights, one to get answers."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

from torch import Tensor

from rlhf_api.roles import Role
from rlhf_api.run import Member
from rlhf_api.status import MemberStatus

from .policy.engine import Engine
from .records import Prompt, Rollout
from .rollout.vllm import VllmClient
from .roster import Unavailable
from .run import Run
from .weights.sync import SyncReport, WeightSync

log = logging.getLogger(__name__)

REFUSALS = 3
"""How often generators that live may refuse weights, or fail at every prompt, before the run fails."""


class Fleet:
    """The generators that hold the policy's current weights. Its methods are collectives.

    A generator that dies costs its unanswered prompts a detour and the weight group one epoch; one that is new, or
    back, gets the current weights before it is asked anything.
    """

    def __init__(self, run: Run, policy: Engine, sync: WeightSync | None, client: VllmClient | None) -> None:
        """`sync` and `client` on rank 0 only."""
        self._run, self._policy, self._sync, self._client = run, policy, sync, client
        self._holders: dict[str, Member] = {}
        self._version = -1

    def publish(self, version: int) -> None:
        """Broadcasts the policy's weights to every generator that answers; waits for at least one.

        Raises:
            Unavailable: no generator took the weights within its start-up time.
        """
        if self._run.services is not None:
            self._send(version)
            self._run.ranks.agree(lambda: False)  # the last broadcast is done
        else:
            while self._run.ranks.agree(bool):
                for _ in self._policy.named_tensors():  # gathering the weights is a collective
                    pass
        self._version = version

    def answer(self, prompts: Sequence[Prompt]) -> list[Rollout]:
        """The answers to all prompts, in their order; on rank 0, nothing on the others.

        Prompts of a generator that fails go to the others; when none is left they wait for a replacement.

        Raises:
            Unavailable: generators come, and fail at every prompt.
        """
        answers: dict[str, list[Rollout]] = {}
        waiting, fruitless = list(prompts), 0
        if self._run.ranks.agree(self._someone_is_new):
            self.publish(self._version)
        while True:
            if self._client is not None:
                outcome = self._client.generate(
                    waiting,
                    list(self._holders.values()),
                    self._version,
                    current=self._present,
                    left=lambda count: self._run.report(queue=count),
                )
                waiting = outcome.unanswered
                for rollout in outcome.answers:
                    answers.setdefault(rollout.prompt.id, []).append(rollout)
                for uid in outcome.failed:
                    self._holders.pop(uid, None)
                fruitless = fruitless + 1 if outcome.failed and not outcome.answers else 0
                if fruitless == REFUSALS:
                    why = "; ".join(outcome.failed.values())
                    raise Unavailable(f"no generator answers: {REFUSALS} times in a row, all failed: {why}")
            if not self._run.ranks.agree(partial(bool, waiting)):
                return [rollout for prompt in prompts for rollout in answers.get(prompt.id, ())]
            self.publish(self._version)

    def _someone_is_new(self) -> bool:
        assert self._run.services is not None
        answering = {m.uid for m in self._run.services.roster.answering(Role.GENERATOR)}
        return answering != set(self._holders)

    def _present(self) -> dict[str, Member]:
        assert self._run.services is not None
        return self._run.services.control.present(Role.GENERATOR)

    def _send(self, version: int) -> None:
        assert self._run.services is not None
        assert self._sync is not None
        role, roster = self._run.spec.generator, self._run.services.roster
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
        self._run.ranks.agree(lambda: True)
        yield from self._policy.named_tensors()

    def _tell(self, report: SyncReport) -> None:
        assert self._run.services is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._run.report(
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
                for member in self._run.services.control.members(Role.GENERATOR)
            )
        )
