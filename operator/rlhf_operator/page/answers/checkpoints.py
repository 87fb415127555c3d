"""A run's checkpoints and tokens, from its store: in its folder, or where its manifest says."""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.replay import EPISODES
from rlhf_store.errors import DamagedSnapshot, UnusableStore

from ...archive.tokens import read_sample_tokens, read_tokens
from ..folder.run_folder import RunFolder
from ..folder.sample_list import find_sample
from ..refusal import Refusal

if TYPE_CHECKING:
    from rlhf_store.archive import Archive
    from rlhf_store.manifest import Entry

_EPISODE = re.compile(rf"{EPISODES}(\d{{8,}})\.parquet", re.ASCII)
_TRIED = 3
"""Newest checkpoints of which one may be read: the run may delete another meanwhile."""
_MOST_CONTENTS = 4096
_contents = dict[str, "Content"]()
"""By the key of a manifest, which its content is named by."""


class Content(NamedTuple):
    """Bytes of a checkpoint, and the steps whose episodes it has."""

    bytes: int
    episodes: frozenset[int]


def list_checkpoints(run: RunFolder) -> tuple[list[dict[str, Any]], str]:
    """The checkpoints that can be read now, the oldest first, and why the store cannot be read; empty if it can."""
    try:
        with run.opened_store() as checkpoints:
            return [] if checkpoints is None else _describe_all(checkpoints), ""
    except (RuntimeError, UnusableStore, InvalidJob) as error:  # the rest of the run is there
        return [], str(error)


def _describe_all(checkpoints: "Archive") -> list[dict[str, Any]]:
    entries = checkpoints.entries()
    best = max((entry.reward for entry in entries if entry.reward is not None), default=None)
    return [
        {
            "step": entry.step,
            "created": entry.time,
            "bytes": content.bytes if content else None,
            "evaluation": entry.reward,
            "best": best is not None and entry.reward == best,
            "good": entry.good,
            "epoch": entry.epoch,
        }
        for entry in entries
        for content in [_read_content(checkpoints, entry)]
    ]


def read_data_sums(run: RunFolder) -> dict[str, int]:
    """Checksums of the rows of each source by its path, as the trainer read them, from the newest checkpoint that can
    be read; none without one."""
    try:
        with run.opened_store() as checkpoints:
            if checkpoints is None:
                return {}
            for entry in reversed(checkpoints.entries()[-_TRIED:]):
                with suppress(DamagedSnapshot):
                    sums = checkpoints.open(entry).state.get("data")
                    items = sums.items() if isinstance(sums, Mapping) else ()
                    return {path: each for path, each in items if type(each) is int}
    except (RuntimeError, UnusableStore, InvalidJob):
        pass
    return {}


def list_tokens(run: RunFolder, id: str) -> dict[str, Any]:
    """`/runs/{id}/samples/{sample}/tokens`. Raises Refusal without them."""
    placed, number = find_sample(run.samples.refresh(), id)
    try:
        with run.opened_store() as checkpoints:
            if checkpoints is None:
                raise Refusal(
                    404, "the run has no checkpoints, which have the tokens of the newest responses"
                )
            if run.reads_episodes:
                return {"tokens": read_tokens(checkpoints, placed.sample, number)}
            return {"tokens": read_sample_tokens(checkpoints, placed.sample, placed.number)}
    except InvalidJob as error:
        if run.reads_episodes:
            raise
        raise Refusal(404, f"{error}; {_name_command(run)}") from None
    except (RuntimeError, UnusableStore) as error:
        raise Refusal(404, f"the store cannot be read: {error}") from None


def _name_command(run: RunFolder) -> str:
    """The command that reads episodes where the page does not."""
    section = run.spec().get("checkpoint")
    store = section.get("store") if isinstance(section, Mapping) else None
    place = shlex.quote(str(store or "URL"))
    return f"with keys of your own `rlhf ui {place}` shows those of all responses of the newest steps"


def list_contents(checkpoints: "Archive") -> "list[tuple[Entry, Content]]":
    """The checkpoints that can be read now, the oldest first. Raises UnusableStore."""
    pairs = ((entry, _read_content(checkpoints, entry)) for entry in checkpoints.entries())
    return [(entry, content) for entry, content in pairs if content is not None]


def _read_content(checkpoints: "Archive", entry: "Entry") -> Content | None:
    """None for a checkpoint that is damaged, or that the run has deleted meanwhile."""
    if (content := _contents.get(entry.key)) is None:
        try:
            snapshot = checkpoints.open(entry)
        except DamagedSnapshot:
            return None
        matches = map(_EPISODE.fullmatch, snapshot.blobs)
        content = Content(
            sum(segment.size for segment in snapshot.manifest.segments()),
            frozenset(int(match[1]) for match in matches if match),
        )
        if len(_contents) >= _MOST_CONTENTS:
            _contents.clear()
        _contents[entry.key] = content
    return content
