"""Replies about episodes: all responses of the steps whose episodes a checkpoint still has, paged from Parquet."""

from typing import TYPE_CHECKING, Any

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.replay import EPISODES
from rlhf_store.errors import UnusableStore

from ...archive.episode_file import EpisodeFile
from ...archive.tokens import read_row_tokens
from ..folder.episode_rows import EpisodeRows
from ..folder.run_folder import RunFolder
from ..folder.sample_choice import find_place
from ..folder.sample_list import count_scores, list_samples, recall
from ..refusal import Query, Refusal
from .checkpoints import list_contents

if TYPE_CHECKING:
    from rlhf_store.archive import Archive, Snapshot


def answer_episodes(run: RunFolder, rest: str, query: Query) -> dict[str, Any]:
    """`/runs/{id}/episodes`, `/episodes/{step}`, `/episodes/{step}/scores` and `/episodes/{sample}/tokens`. Raises
    Refusal."""
    if not rest:
        return {"steps": _list_steps(run)}
    id, _, part = rest.partition("/")
    step, _, row = id.partition(".")
    if not step.isdecimal() or part not in (("tokens",) if row else ("", "scores")):
        raise Refusal(404, "no such path of an episode; it is /STEP, /STEP/scores or /STEP.ROW/tokens")
    try:
        return _answer(*_open_episode(run, int(step)), id, part, query)
    except InvalidJob:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # columns of other names and types
        raise Refusal(404, f"the episode of step {step} cannot be read: {type(error).__name__}") from None


def _answer(snapshot: "Snapshot", rows: EpisodeRows, id: str, part: str, query: Query) -> dict[str, Any]:
    if part == "tokens":
        if (place := find_place(rows.columns, id)) is None:
            raise Refusal(404, "the episode has no such response")
        return {"tokens": read_row_tokens(snapshot, rows.file, place)}
    return recall(rows, count_scores if part else list_samples, query)


def _list_steps(run: RunFolder) -> list[int]:
    if not run.reads_episodes:
        return []
    try:
        with run.opened_store() as checkpoints:
            contents = [] if checkpoints is None else list_contents(checkpoints)
    except (RuntimeError, UnusableStore, InvalidJob):  # the rest of the run is there
        return []
    return sorted({step for _, content in contents for step in content.episodes})


def _open_episode(run: RunFolder, step: int) -> "tuple[Snapshot, EpisodeRows]":
    """A step's episode, in the newest checkpoint that has it; the run holds the last one that was opened."""
    if not run.reads_episodes:
        raise Refusal(404, "episodes are in Parquet, which a cluster's page does not read")
    try:
        with run.opened_store() as checkpoints:
            snapshot = _find_snapshot(checkpoints, step)
            name = f"{EPISODES}{step:08d}.parquet"
            key = tuple(part.digest for part in snapshot.parts(name))
            if run.episode is None or run.episode[0] != key:
                run.episode = None  # before another one takes its room
                run.episode = key, EpisodeRows(EpisodeFile(snapshot, name), step)
            return snapshot, run.episode[1]
    except (RuntimeError, UnusableStore) as error:
        raise Refusal(404, f"the store cannot be read: {error}") from None


def _find_snapshot(checkpoints: "Archive | None", step: int) -> "Snapshot":
    if checkpoints is not None:
        for entry, content in reversed(list_contents(checkpoints)):
            if step in content.episodes:
                return checkpoints.open(entry)
    raise Refusal(
        404,
        f"no checkpoint has the episode of step {step}: each has its newest, and those of the window of spec.replay",
    )
