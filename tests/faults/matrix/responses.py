"""Responses in a snapshot and their fate, read from the store rather than from the trainer's report."""

from collections import Counter
from collections.abc import Iterator
from io import BytesIO

import pyarrow.parquet as parquet

from rlhf_api.sections.replay import EPISODES
from rlhf_store.archive import Archive, Snapshot
from rlhf_trainer.rollout.in_flight.saved_responses import BLOB
from rlhf_trainer.rollout.in_flight.saved_responses import decode as decode_works
from rlhf_trainer.rollout.partial_rollout import Response

Sampled = tuple[list[int], list[int]]
"""Tokens of a response, and the weight version that sampled each, UNSAMPLED for those of an environment's replies."""
UNSAMPLED = -1


class Responses:
    """Tracks responses through the snapshots of a run: which are begun, whole, or gone. Each key is a prompt's id and
    a number among its responses."""

    def __init__(self, url: str, staleness: int) -> None:
        self._archive, self._staleness = Archive(url), staleness
        self._read: set[str] = set()
        self._trained: dict[tuple[str, int], Sampled] = {}
        self._sampled: list[tuple[tuple[str, int], Sampled]] = []
        self._old = 0

    def keep(self) -> int:
        """Remembers the responses of the newest snapshot that no episode has; returns how many are only begun."""
        if not (entries := self._archive.entries()):
            return 0
        ahead = _ahead(self._archive.open(entries[-1]))
        self._sampled += [(key, sampled) for key, (sampled, _) in ahead.items()]
        return sum(not whole for _, whole in ahead.values())

    def check(self) -> tuple[int, int]:
        """Of all that was remembered, the responses that the newest snapshot neither has nor has trained on as they
        were; and since the last call the tokens that were trained on beyond the bound."""
        snapshot = self._archive.open(self._archive.entries()[-1])
        self._read_episodes(snapshot)
        now = {key: sampled for key, (sampled, _) in _ahead(snapshot).items()} | self._trained
        missing = sum(not (key in now and begins(now[key], sampled)) for key, sampled in self._sampled)
        self._sampled = [entry for entry in self._sampled if entry[0] not in self._trained]
        old, self._old = self._old, 0
        return missing, old

    def _read_episodes(self, snapshot: Snapshot) -> None:
        for name in snapshot.blobs:
            digest = snapshot.manifest.blobs[name].digest
            if not name.startswith(EPISODES) or digest in self._read:
                continue
            self._read.add(digest)
            for key, episode, sampled in _rows(snapshot.blob(name)):
                if key not in self._trained:
                    bound = episode - 1 - self._staleness
                    self._old += sum(UNSAMPLED < version < bound for version in sampled[1])
                self._trained[key] = sampled


def _ahead(snapshot: Snapshot) -> dict[tuple[str, int], tuple[Sampled, bool]]:
    """Responses that no episode has, and whether each is whole."""
    works = decode_works(snapshot.blob(BLOB)) if BLOB in snapshot.blobs else []
    return {
        (work.prompt.id, k): ((list(r.tokens), _versions(r)), r.end is not None)
        for work in works
        for k, r in enumerate(work.responses)
        if r.tokens
    }


def _versions(response: Response) -> list[int]:
    flags = response.sampled or [True] * len(response.tokens)
    return [version if flag else UNSAMPLED for version, flag in zip(response.versions, flags, strict=True)]


def begins(whole: Sampled, part: Sampled) -> bool:
    """The response goes on from the part, token by token, each of the version that sampled it."""
    count = len(part[0])
    return (whole[0][:count], whole[1][:count]) == part


def _rows(data: bytes) -> Iterator[tuple[tuple[str, int], int, Sampled]]:
    names = ["episode", "prompt_id", "response_tokens", "weight_versions"]
    table = parquet.read_table(BytesIO(data), columns=names)
    counts = Counter[str]()
    for episode, prompt, tokens, versions in zip(*(table[n].to_pylist() for n in names), strict=True):
        yield (prompt, counts[prompt]), episode, (tokens, versions)
        counts[prompt] += 1
