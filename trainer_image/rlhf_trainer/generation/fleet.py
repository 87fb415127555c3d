"""The generators as the training loop sees them: one call to give them weights, one to get responses."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime

from torch import Tensor

from rlhf_api.evaluation import NO_PENALTIES, Penalties
from rlhf_api.roles import Role
from rlhf_api.run import Member
from rlhf_api.spec import Sampling
from rlhf_api.status import MemberStatus

from .. import faults
from ..comms.dispatch import Switches
from ..comms.roster import Stopped, Unavailable
from ..context import TrainerContext
from ..models.trained_model import TrainedModel
from ..records import Prompt
from ..weights.broadcaster import SyncReport, WeightSync
from .dispatch import Round, start_round
from .engine import EngineClient
from .requests import REFUSALS, Requests, Responses
from .work import Work, rollouts

log = logging.getLogger(__name__)


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
        self._members: list[Member] = []
        self._failures: Counter[str] = Counter()  # to take the newest weights, by uid
        self._holders: dict[str, Member] = {}
        self._version = self._current = -1
        self.ahead = Requests(self._start, self._left_out, ctx.stop)
        """Requests that go on while weights are published, on rank 0."""

    def publish(self, version: int) -> None:
        """Broadcasts the policy's weights to every generator that answers; waits for at least one. Responses under way
        stop before the new weights; their requests are to be ended and begun again.

        Raises:
            Unavailable: no generator took the weights within its start-up time.
            Stopped: the run is to stop, on every rank.
        """
        self._failures.clear()
        while self.say(self._wait_for_members) != "stop":
            if self._sent(version):
                self._version = self._current = version
                return
        raise Stopped("stopped while waiting for the generators")

    @property
    def version(self) -> int:
        """The weight version that the generators hold; -1 before the first."""
        return self._version

    @property
    def current(self) -> int:
        """The policy's weight version."""
        return self._current

    def move_on(self, version: int) -> None:
        """The policy has `version` now; the generators keep theirs until `publish`, or until a new one joins."""
        self._current = version

    def changed(self) -> str:
        """Which generators serve other weights than they were given, and which; empty for none."""
        return self.say(lambda: self._sync.changed(list(self._holders.values())) if self._sync else "")

    def answer(
        self, prompts: Sequence[Prompt], sampling: Sampling | None = None, penalties: Penalties = NO_PENALTIES
    ) -> Responses:
        """The responses to all prompts, in their order; see `stream`."""
        (responses,) = self.stream(prompts, None, sampling, penalties)
        return responses

    def stream(
        self,
        prompts: Sequence[Prompt],
        size: int | None,
        sampling: Sampling | None = None,
        penalties: Penalties = NO_PENALTIES,
    ) -> Iterator[Responses]:
        """The responses to all prompts, those to `size` prompts at a time as they come, a short rest with the last; all
        at once for None. `sampling` says how many to each and at which temperature; the job's unless given.

        On rank 0; on the others as many empty batches. Prompts of a generator that fails go to the others; when none
        is left they wait for a replacement. Requests under way are cancelled when this is left before its end.

        Raises:
            Unavailable: generators come, and fail at every prompt, or refuse every one.
            Stopped: the run is to stop, on every rank.
        """
        if self._ctx.ranks.agree(self._someone_is_new):
            self.publish(self._current)
        batches = (
            iter(())
            if self._client is None
            else self._batches(self.fresh(prompts, sampling, penalties), size)
        )
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

            match self.say(following):
                case "end":
                    return
                case "stop":
                    raise Stopped("stopped while the generators were at work")
                case "publish":
                    self.publish(self._current)
                case _:
                    yield found or Responses()

    def fresh(
        self, prompts: Sequence[Prompt], sampling: Sampling | None = None, penalties: Penalties = NO_PENALTIES
    ) -> list[Work]:
        """Prompts without any response yet."""
        found = sampling or self._ctx.spec.sampling
        asked = found.answers_per_prompt, found.temperature, penalties
        return [Work.begin(prompt, *asked) for prompt in prompts]

    def _batches(self, works: Sequence[Work], size: int | None) -> Iterator[Responses | None]:
        """On rank 0. None: nobody is left to ask; weights must go out before the next batch is asked for."""
        places = {work.prompt.id: place for place, work in enumerate(works)}
        batches = 1 if size is None else max(1, len(works) // size)
        requests = Requests(self._start, self._left_out, self._ctx.stop)
        requests.waiting = list(works)
        answered, taken = requests.answered, 0
        requests.begin()
        try:
            while True:
                last = size is None or taken >= size * (batches - 1)
                goal = len(works) + 1 if size is None or last else taken + size
                if requests.until(lambda goal=goal: len(answered) >= goal):  # type: ignore[misc]
                    yield Responses(rollouts(_in_order(list(answered.values())[taken:goal], places)))
                    taken = goal
                elif requests.waiting:
                    yield None
                    requests.begin()
                else:
                    break
        finally:
            requests.cancel()
        refused = requests.refused
        if refused and len(refused) == len(works):
            raise Unavailable(f"the generators refuse every prompt: {next(iter(refused.values()))}")
        rest = _in_order(list(answered.values())[taken:], places)
        yield Responses(rollouts(rest), requests.requeued, refused)

    def _start(
        self, works: Sequence[Work], arrived: Callable[[Work], None], switches: Switches
    ) -> "Future[Round]":
        assert self._ctx.services is not None
        assert self._client is not None
        role = self._ctx.spec.generator
        started = start_round(
            self._ctx.services.http,
            self._client,
            works,
            list(self._holders.values()),
            current=self._present,
            concurrent=role.concurrent_requests,
            silence=role.timeout_seconds,
            left=lambda count: self._ctx.report(queue=count),
            arrived=arrived,
            switches=switches,
        )
        faults.point(f"generating:{len(works)}")
        return started

    def _left_out(self, failed: Mapping[str, str]) -> None:
        """Generators that failed in a round hold nothing until they take weights again."""
        for uid in failed:
            self._holders.pop(uid, None)

    def say(self, what: str | Callable[[], str]) -> str:
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

    def _wait_for_members(self) -> str:
        """On rank 0, for as long as the generators take to start."""
        assert self._ctx.services is not None
        role, roster = self._ctx.spec.generator, self._ctx.services.roster
        wanted = role.replicas if self._version < 0 else 1
        try:
            self._members = roster.wait(Role.GENERATOR, wanted, role.startup_timeout_seconds)
        except Stopped:
            return "stop"
        return "send"

    def _sent(self, version: int) -> bool:
        """True if a generator has taken the weights, on every rank."""
        if self._ctx.services is not None:
            return self.say("sent" if self._send(version) else "again") == "sent"
        while (said := self.say("")) == "gather":
            for _ in self._policy.named_tensors():  # gathering the weights is a collective
                pass
        return said == "sent"

    def _send(self, version: int) -> bool:
        """On rank 0, to the members that it has waited for."""
        assert self._sync is not None
        members = self._members
        report = self._sync.send(members, self._announced, version, self.ahead.close)
        for target, reason in report.lost.items():
            log.warning("%s did not take weight version %d: %s", target.name, version, reason)
        if not report.holders:
            # Whoever died is being replaced and may try again; whoever lives and refuses does so three times.
            self._failures.update(target.uid for target in report.lost)
            if all(self._failures[member.uid] >= REFUSALS for member in members):
                why = "; ".join(f"{target.name}: {reason}" for target, reason in report.lost.items())
                raise Unavailable(f"no generator took weight version {version}: {why}")
            return False
        held = {target.uid for target in report.holders}
        for target in report.holders:
            if target.uid not in self._holders:
                log.info("%s joined with weight version %d", target.name, version)
        self._holders = {member.uid: member for member in members if member.uid in held}
        self._tell(report)
        return True

    def _announced(self) -> Iterator[tuple[str, Tensor]]:
        """The weights, after telling the other ranks to gather them too."""
        self.say("gather")
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


def _in_order(works: Sequence[Work], places: Mapping[str, int]) -> list[Work]:
    """By the order of their prompts."""
    return sorted(works, key=lambda work: places[work.prompt.id])
