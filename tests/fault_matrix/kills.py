"""Kills at random of one job that generates ahead of training: half at a named point of a step, half at any time."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import pyarrow.parquet as parquet
from tests.fault_matrix.cells import MOMENTS, STALENESS, Cell, Mode

from rlhf_api.replay import EPISODES
from rlhf_store.archive import Archive
from rlhf_trainer.generation.ahead import BLOB
from rlhf_trainer.generation.ahead import decode as decode_works

MODE: Mode = "staleness 2"
KILLED = ("trainer rank 0", "trainer rank 1", "torchrun", "generator server", "generator engine")
ANY_TIME = "any time"
SPAN_SECONDS = 4.0
"""A kill at any time comes within this of the beginning of a step: longer than a step takes."""

Sampled = tuple[list[int], list[int]]
"""Tokens of a response, and the weight version that sampled each."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL for a victim of `cells`: at a moment, or `after` so many seconds of a step where it is ANY_TIME."""

    victim: str
    moment: str
    after: float | None = None

    @property
    def cell(self) -> Cell:
        return Cell(MODE, self.victim, "SIGKILL", self.moment)


def schedule(seed: int, kills: int) -> list[Kill]:
    """The same for the same seed."""
    draw = random.Random(seed)

    def one(number: int) -> Kill:
        victim = draw.choice(KILLED)
        if number % 2:
            return Kill(victim, ANY_TIME, round(draw.uniform(0, SPAN_SECONDS), 3))
        return Kill(victim, draw.choice(list(MOMENTS)))

    return draw.sample(found := [one(number) for number in range(kills)], len(found))


class Responses:
    """What snapshots hold of responses, and what became of it: each key is a prompt's id and a number among its
    responses."""

    def __init__(self, url: str) -> None:
        self._archive = Archive(url)
        self._read: set[str] = set()
        self._trained: dict[tuple[str, int], Sampled] = {}
        self._kept: list[tuple[tuple[str, int], Sampled]] = []
        self._old = 0

    def keep(self) -> int:
        """Remembers the responses of the newest snapshot that no episode has; returns how many are only begun."""
        ahead = self._ahead()
        self._kept += [(key, sampled) for key, (sampled, _) in ahead.items()]
        return sum(not whole for _, whole in ahead.values())

    def check(self) -> tuple[int, int]:
        """Of all that was remembered, the responses that the newest snapshot neither has nor has trained on as they
        were, and so far the tokens that were older than the bound."""
        self._read_episodes()
        ahead = {key: sampled for key, (sampled, _) in self._ahead().items()}
        now = ahead | self._trained
        gone = sum(not (key in now and begins(now[key], sampled)) for key, sampled in self._kept)
        self._kept = [kept for kept in self._kept if kept[0] not in self._trained]
        return gone, self._old

    def _ahead(self) -> dict[tuple[str, int], tuple[Sampled, bool]]:
        snapshot = self._archive.open(self._archive.entries()[-1])
        works = decode_works(snapshot.blob(BLOB)) if BLOB in snapshot.blobs else []
        return {
            (work.prompt.id, k): ((list(r.tokens), list(r.versions)), r.end is not None)
            for work in works
            for k, r in enumerate(work.responses)
            if r.tokens
        }

    def _read_episodes(self) -> None:
        snapshot = self._archive.open(self._archive.entries()[-1])
        for name in snapshot.blobs:
            digest = snapshot.manifest.blobs[name].digest
            if not name.startswith(EPISODES) or digest in self._read:
                continue
            self._read.add(digest)
            for key, episode, sampled in _rows(snapshot.blob(name)):
                if key not in self._trained:
                    self._old += sum(version < episode - 1 - STALENESS[MODE] for version in sampled[1])
                self._trained[key] = sampled


def begins(whole: Sampled, part: Sampled) -> bool:
    """The response goes on from the part, token by token, each of the version that sampled it."""
    count = len(part[0])
    return (whole[0][:count], whole[1][:count]) == part


def _rows(data: bytes) -> Iterator[tuple[tuple[str, int], int, Sampled]]:
    names = ["episode", "prompt_id", "response_tokens", "weight_versions"]
    table = parquet.read_table(BytesIO(data), columns=names)
    seen = Counter[str]()
    for episode, prompt, tokens, versions in zip(*(table[n].to_pylist() for n in names), strict=True):
        yield (prompt, seen[prompt]), episode, (tokens, versions)
        seen[prompt] += 1
