"""The episodes that live in the pool's workers, at most `parallel` at once."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from rlhf_api.sections.environment import Environment

from ..tensors.records import Prompt
from .live_episode import EpisodeEnded, EpisodeFailed, LiveEpisode
from .rendering import Rendering
from .workers.interface import WorkerEnded, Workers

Key = tuple[str, int]
"""A prompt's id, and the index of one of its responses."""


class LiveEpisodes:
    """Further ones queue. Those that nobody is `holding`, nor their prompt, make way, to be played again later."""

    def __init__(self, section: Environment, rendering: Rendering, pool: Workers) -> None:
        self._section, self._rendering, self._pool = section, rendering, pool
        self._numbers = count()
        self._episodes = dict[Key, LiveEpisode]()
        self._holders = Counter[str | Key]()
        self._queue = deque[asyncio.Future[None]]()
        self._reserved = 0
        """Number of places whose episodes have yet to begin."""
        self._ending = set[asyncio.Future[None]]()

    @contextmanager
    def holding(self, held: str | Key) -> Iterator[None]:
        """Meanwhile the episodes of this prompt, or this episode, do not make way for others."""
        self._holders[held] += 1
        try:
            yield
        finally:
            self._holders[held] -= 1
            if not self._holders[held]:
                del self._holders[held]
            self._admit()

    def find(self, key: Key) -> LiveEpisode | None:
        """The episode, unless its worker has ended."""
        episode = self._episodes.get(key)
        return episode if episode is not None and episode.worker.lives else None

    async def begin(self, key: Key, prompt: Prompt, *, one_by_one: bool = False) -> LiveEpisode:
        """A new episode in place of the one with this key; `one_by_one`: in the worker that has its calls so. Raises as
        `LiveEpisode.begin` and `Workers.free`."""
        self.forget(key)
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._admit()
        try:
            await place
            worker = await self._pool.free(one_by_one=one_by_one)
        except BaseException:
            if not place.cancelled():
                self._reserved -= 1
                self._admit()
            raise
        self._reserved -= 1
        worker.episodes += 1
        episode = LiveEpisode(worker, next(self._numbers), self._rendering, self._section)
        self._episodes[key] = episode
        try:
            await episode.begin(prompt)
        except BaseException:
            if self._episodes.get(key) is episode:
                self.forget(key)
            raise
        return episode

    def forget(self, key: Key, *, closed: bool = False) -> None:
        """Drops an episode and, unless it is `closed`, closes its environment, without waiting for that."""
        self._drop(key, closed=closed)
        self._admit()

    def _admit(self) -> None:
        """Gives places to those at the head of the queue: one is woken for each, however many wait."""
        while self._queue and (self._queue[0].cancelled() or self._make_place()):
            place = self._queue.popleft()
            if not place.cancelled():
                self._reserved += 1
                place.set_result(None)

    def _make_place(self) -> bool:
        """True if a place is free; where all are taken, drops the first episode that nobody holds."""
        if len(self._episodes) + self._reserved < self._section.most_episodes:
            return True
        held = self._holders
        idle = next((key for key in self._episodes if key not in held and key[0] not in held), None)
        if idle is None:
            return False
        self._drop(idle)
        return True

    def _drop(self, key: Key, *, closed: bool = False) -> None:
        episode = self._episodes.pop(key, None)
        if episode is None:
            return
        episode.worker.episodes -= 1
        if not closed and episode.worker.lives:
            ending = asyncio.ensure_future(_close(episode))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


async def _close(episode: LiveEpisode) -> None:
    with suppress(WorkerEnded, EpisodeFailed, EpisodeEnded):
        await episode.close()
