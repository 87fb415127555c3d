"""The environments of the responses under way: begun at the first turn's end, found again by prompt and response, and
played again from the response's tokens where one is lost.
"""

import asyncio
import logging
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from transformers import PreTrainedTokenizerBase

from rlhf_api.contract.run import role_token, roles_of
from rlhf_api.roles import Role
from rlhf_api.sections.environment import Environment
from rlhf_api.spec import Spec

from ..data.encode import TooLong
from ..data.stop_strings import StopStrings
from ..dispatch.outcomes import Refused
from ..dispatch.roster import Roster
from ..tensors.records import Outcome, Prompt
from .live_episode import EpisodeEnded, EpisodeFailed, LiveEpisode, Reply
from .live_episodes import Key, LiveEpisodes
from .record import Turn, turns_of
from .rendering import Rendering
from .workers.interface import WorkerEnded, Workers
from .workers.pool import WorkerPool
from .workers.role_workers import RoleWorkers, sandboxes_of
from .workers.sandbox_pods import SandboxPods

log = logging.getLogger(__name__)

UNOPENED = "the environment opens no episode"
"""Begin of the reason of a prompt that the class or its settings cannot open, and never will."""


class Otherwise(Exception):
    """Played again, the environment replies otherwise than the response's tokens say."""


class OpensOtherwise(Exception):
    """The environment opens otherwise than when the responses to this prompt began, as where they are a snapshot's and
    the class has changed since: all begin anew."""


@dataclass(frozen=True)
class Next:
    """The successor of a turn: `context` tokens and another turn, which on a `branch` follows them alone; or the
    episode's `end` and its outcome, or its first turn, if it is to begin `anew`."""

    context: "array[int]"
    end: str | None = None
    outcome: Outcome | None = None
    anew: bool = False
    branch: bool = False


class Environments:
    """On one event loop. At most `parallel` episodes live at once: further ones wait. Those that nobody is `holding`
    make way, to be played again later.

    A worker that dies or hangs is replaced, and its episodes are played again there from their record: all replies must
    be those in the response's tokens, else the episode begins anew. The one whose call was under way may have that
    `retries` times; then it ends without a reward.
    """

    def __init__(self, section: Environment, rendering: Rendering, pool: Workers) -> None:
        self.section, self._pool = section, pool
        self._live = LiveEpisodes(section, rendering, pool)
        self._waiting: dict[Key, tuple[Prompt, array[int], asyncio.Future[Next]]] = {}
        """Turns that an environment replies to, with the prompt's and the response's tokens up to there."""
        self._opened_again = set[str]()
        """Prompts whose responses have begun anew since they opened otherwise: only once."""
        self._failures: Counter[Key] = Counter()
        self._unreachable = set[Key]()
        """Episodes whose process could not be reached any more: once, which is nobody's fault."""
        self._suspected = set[Key]()
        """Episodes of which one has ended their process: each goes on where it is known which."""

    def holding(self, prompt_id: str) -> AbstractContextManager[None]:
        """Meanwhile the episodes of this prompt do not make way for others."""
        return self._live.holding(prompt_id)

    async def open(self, prompt: Prompt) -> Prompt:
        """The prompt with the tokens of its opening, by the environment of its first response. Raises Refused where
        that fails, and InvalidJob where no prompt can be opened so."""
        key = prompt.id, 0
        self._abandon(key)
        while True:
            try:
                episode = self._live.find(key)
                if episode is None or episode.read:
                    episode = await self._begin(key, prompt)
                return replace(prompt, tokens=episode.opened.tokens)
            except (WorkerEnded, EpisodeFailed) as error:
                if self._gives_up(key, error):
                    raise Refused(str(error)) from None
            except (EpisodeEnded, TooLong) as error:
                raise Refused(f"{UNOPENED}: {error}") from None

    def reply(
        self, prompt: Prompt, index: int, tokens: "array[int]", sampled: "array[int]"
    ) -> "asyncio.Future[Next]":
        """The successor of a response's last turn; `tokens` and `sampled` as in `Rollout`. The future is the same
        for each call with these tokens until `take`: who waits for it may be cancelled, the environment is not."""
        key = prompt.id, index
        if waiting := self._waiting.get(key):
            opened, read, following = waiting
            if opened.tokens == prompt.tokens and read == tokens:
                return following
            self._abandon(key)
        following = asyncio.ensure_future(self._read(key, prompt, turns_of(tokens, sampled), len(tokens)))
        self._waiting[key] = prompt, tokens[:], following
        return following

    def take(self, prompt: Prompt, index: int) -> Next:
        """The result of `reply`, once it is there. Raises OpensOtherwise."""
        return self._waiting.pop((prompt.id, index))[2].result()

    async def close(self) -> None:
        """Ends all worker processes."""
        await self._pool.close()

    def _abandon(self, key: Key) -> None:
        """Drops a turn that nobody waits for any more, and its environment, which may have read it by now."""
        if key in self._waiting:
            self._waiting.pop(key)[2].cancel()
            self._live.forget(key)

    async def _read(self, key: Key, prompt: Prompt, turns: list[Turn], length: int) -> Next:
        with self._live.holding(key):  # whose prompt may be nobody's any more
            return await self._next(key, prompt, turns, length)

    async def _next(self, key: Key, prompt: Prompt, turns: list[Turn], length: int) -> Next:
        while True:
            try:
                episode = await self._current(key, prompt, turns)
                return await self._replied(key, episode, turns[-1], length)
            except (WorkerEnded, EpisodeFailed) as error:
                if self._gives_up(key, error):
                    return self._ended(key, "stop", _problem(str(error), len(turns)))
            except EpisodeEnded as error:
                return self._ended(key, "stop", _problem(str(error), len(turns)))
            except Otherwise:
                log.info("an episode of prompt %s begins anew: its environment replies otherwise", prompt.id)
                self._live.forget(key)
                return Next(array("i"), anew=True)

    async def _replied(self, key: Key, episode: LiveEpisode, turn: Turn, length: int) -> Next:
        reply = await episode.step(turn)
        section = self.section
        full = episode.turns >= section.turns or length + len(reply.tokens) >= section.max_tokens
        cut = reply.cut or full
        if reply.done or cut:
            outcome = await episode.end(cut=not reply.done)
            return self._ended(key, "stop" if reply.done else "length", outcome)
        return Next(array("i", reply.tokens), branch=reply.branch)

    async def _current(self, key: Key, prompt: Prompt, turns: list[Turn]) -> LiveEpisode:
        """The episode, which has read all turns but the last one."""
        record = array("i", [token for turn in turns[:-1] for token in (*turn.sampled, *turn.reply)])
        episode = self._live.find(key)
        if episode is None or episode.read != record:
            episode = await self._begin(key, prompt)
            if (tokens := episode.opened.tokens) != prompt.tokens:
                again = (await self._begin(key, prompt)).opened.tokens
                if again == tokens and prompt.id not in self._opened_again:
                    self._opened_again.add(prompt.id)
                    raise OpensOtherwise
                message = (
                    "reset opened otherwise than before for the same row; seed what is random by the row"
                )
                raise EpisodeEnded(message)
            for turn in turns[:-1]:
                await self._play_again(episode, turn)
        return episode

    async def _begin(self, key: Key, prompt: Prompt) -> LiveEpisode:
        return await self._live.begin(key, prompt, one_by_one=key in self._suspected)

    async def _play_again(self, episode: LiveEpisode, turn: Turn) -> None:
        reply: Reply = await episode.step(turn)
        if reply.done or reply.cut or [*reply.tokens] != [*turn.reply]:
            raise Otherwise

    def _ended(self, key: Key, end: str, outcome: Outcome) -> Next:
        self._forget_faults(key)
        self._live.forget(key, closed=not outcome.problem)
        return Next(array("i"), end, outcome)

    def _gives_up(self, key: Key, error: Exception) -> bool:
        """Counts a failure; True after the last retry."""
        self._live.forget(key)
        ended = error if isinstance(error, WorkerEnded) else None
        if ended is not None and ended.unreachable and key not in self._unreachable:
            self._unreachable.add(key)
            log.warning("an episode of prompt %s is played again: %s", key[0], error)
        elif ended is not None and ended.suspected:
            self._suspected.add(key)
            log.warning("an episode of prompt %s is one of several that go on one by one: %s", key[0], error)
        elif ended is None or ended.blamed:
            self._failures[key] += 1
            log.warning("an environment of prompt %s failed (%d): %s", key[0], self._failures[key], error)
        if self._failures[key] <= self.section.retries:
            return False
        self._forget_faults(key)
        return True

    def _forget_faults(self, key: Key) -> None:
        self._failures.pop(key, None)
        self._unreachable.discard(key)
        self._suspected.discard(key)


async def start_environments(
    spec: Spec,
    tokenizer: PreTrainedTokenizerBase,
    ends: Sequence[int],
    *,
    share: int = 1,
    members: tuple[str, Roster] | None = None,
) -> Environments:
    """The job's environment, in processes of its own until the end of the event loop; `ends`: tokens that end a turn;
    `share`: number of those that divide the job's processes and episodes; `members`: the job's token and members, where
    a role may have the processes, or sandboxes. Raises InvalidJob where its class cannot be imported or is none,
    RuntimeError where a process ends over it, or none answers."""
    section = spec.environment
    assert section is not None, "the job has one"
    most = (
        section.most_episodes if spec.sandbox is None else min(section.most_episodes, spec.sandbox.replicas)
    )
    mine = {"workers": max(1, section.workers // share), "parallel": max(1, most // share)}
    section = section.model_copy(update=mine)
    pool: WorkerPool | RoleWorkers = WorkerPool(section)
    if members is not None and Role.ENVIRONMENT in roles_of(spec):
        pool = RoleWorkers(section, *members)
    elif members is not None and spec.sandbox is not None:
        token, roster = role_token(members[0], Role.SANDBOX), members[1]
        seconds = spec.sandbox.startup_timeout_seconds
        await SandboxPods(token, seconds, partial(sandboxes_of, roster), lambda: most).start()
    await pool.start()
    stops = StopStrings(tokenizer, spec.sampling.stop)
    return Environments(section, Rendering(tokenizer, spec.data, ends, stops, pool.schemas), pool)


def _problem(reason: str, turns: int) -> Outcome:
    return Outcome(math.nan, turns, problem=reason)
