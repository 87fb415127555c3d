"""Replay buffer: the episodes kept for replay, for a resume and for inspection."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from rlhf_api.sections.replay import EPISODES, Replay

from ..tensors.columns import Columns
from .table import Episode, Texts, decode, encode, token_columns


class EpisodeReplayBuffer:
    """One episode as passed to a sampler: `episode_id`, and `buffer`, a list with one dictionary for each response.

    The keys: `episode` and `index` (its place in `buffer`), which identify the response; `prompt_id`, `prompt`,
    `response`, `reward`, `weight_version`, `finished`; and, as read-only numpy arrays with one entry per token,
    `prompt_tokens`, `response_tokens`, `sampled_logprobs` and the other token columns of the job's algorithm, such as
    `logprobs` and `advantages`. With an environment, `turns` and `environment_reward`; and where it replied, `sampled`,
    false for the response tokens that are its own, for which the token columns have no entry.
    """

    def __init__(self, episode: Episode, texts: Texts, data: bytes | None = None) -> None:
        """`data`: the episode's encoded table, if available."""
        self.episode, self._texts, self._data = episode, texts, data

    @property
    def episode_id(self) -> int:
        return self.episode.number

    @cached_property
    def buffer(self) -> list[dict[str, Any]]:
        columns, sequences = self.episode.columns, self.episode.columns.sequences
        lengths = sequences.response_lengths.tolist()
        arrays = {name: columns[name].split(lengths) for name in (*token_columns(columns), "versions")}
        more = [name for name in ("turns", "environment_reward") if name in columns]
        scores = columns.rows.get("scores")
        prompts, responses = self._texts(sequences)
        samples = []
        for i, prompt_length in enumerate(sequences.prompt_lengths.tolist()):
            row = sequences.row(i)
            tokens = {"prompt_tokens": row[:prompt_length], "response_tokens": row[prompt_length:]}
            flags = {"sampled": sequences.sampled_of(i), "branches": sequences.branches_of(i)}
            tokens |= {name: torch.tensor(each) for name, each in flags.items() if each is not None}
            floats = {name: arrays[name][i] for name in token_columns(columns)}
            views = {name: array.numpy().view() for name, array in (tokens | floats).items()}
            for view in views.values():
                view.flags.writeable = False
            samples.append(
                {
                    "episode": self.episode_id,
                    "index": i,
                    "prompt_id": self.episode.prompt_ids[i],
                    "prompt": prompts[i],
                    "response": responses[i],
                    "reward": None if scores is None else float(scores[i]),
                    "weight_version": int(arrays["versions"][i].max()),
                    "finished": bool(columns["finished"][i]),
                    **{name: columns[name][i].item() for name in more},
                    **views,
                }
            )
        return samples

    def blob(self) -> bytes:
        """The episode's encoded table, as stored in a snapshot; may be called on another thread."""
        if self._data is None:
            self._data = encode(self.episode, self._texts)
        return self._data


class ReplayBuffer:
    """Episodes that were trained on, first in, first out: those in the replay window; and, on the rank whose blobs are
    stored, always the newest."""

    def __init__(self, replay: Replay, texts: Texts, *, stored: bool = True, routed: bool = False) -> None:
        """`routed`: with the experts that generators chose; those of the policy are of the present step alone."""
        self._replay, self._texts, self._stored, self._routed = replay, texts, stored, routed
        self._retained: list[EpisodeReplayBuffer] = []

    def add(self, episode: Episode, step: int) -> None:
        """Adds an episode that `step` trained on, and evicts those that are too old for the window."""
        self._keep(self._buffered(replace(episode, trained=step)))

    def replayable(self) -> list[EpisodeReplayBuffer]:
        """The window, oldest first; empty if the job does not replay."""
        buffers = [buffer for buffer in self._retained if buffer.episode_id >= self._replay.offset]
        window = self._replay.window
        return buffers[-window:] if window > 0 else buffers if window else []

    def find_joinable(self, fresh: Columns) -> list[EpisodeReplayBuffer]:
        """Rows of the window that have all columns of `fresh`. Others come from a checkpoint with other settings:
        joined with them, all would lose what they lack, such as the reference's log-probabilities."""
        names = {*fresh.tokens, *fresh.rows}
        return [
            buffer for buffer in self.replayable() if all(name in buffer.episode.columns for name in names)
        ]

    def columns(self, picks: Sequence[tuple[int, int]]) -> Columns:
        """Columns of the picked rows, given as (episode, index), in that order; at least one."""
        by_number = {buffer.episode_id: buffer.episode.columns for buffer in self._retained}
        numbers = sorted({number for number, _ in picks})
        parts = {n: by_number[n].select(torch.tensor([i for m, i in picks if m == n])) for n in numbers}
        # Grouped by episode, then permuted into the order of the picks.
        order = sorted(range(len(picks)), key=lambda at: picks[at][0])
        return Columns.join([parts[n] for n in numbers]).select(torch.tensor(order).argsort())

    def blobs(self, pending: Episode | None) -> dict[str, Callable[[], bytes]]:
        """Encoders of all episodes' tables, by their names in a snapshot; `pending` has not been trained on yet."""
        more = [] if pending is None else [self._buffered(pending)]
        return {
            f"{EPISODES}{buffer.episode_id:08d}.parquet": buffer.blob for buffer in (*self._retained, *more)
        }

    def restore(self, blobs: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> Episode | None:
        """Inverse of `blobs`: returns the pending episode. Raises ValueError for invalid data."""
        self._retained, pending = [], None
        for name, data in sorted(dict(blobs).items()):
            try:
                episode = decode(data)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            if episode.trained is None:
                pending = episode
            else:
                self._keep(EpisodeReplayBuffer(episode, self._texts, data))
        return pending

    def _buffered(self, episode: Episode) -> EpisodeReplayBuffer:
        if not self._routed:
            sequences = replace(episode.columns.sequences, routing=None)
            episode = replace(episode, columns=replace(episode.columns, sequences=sequences))
        return EpisodeReplayBuffer(episode, self._texts)

    def _keep(self, buffer: EpisodeReplayBuffer) -> None:
        self._retained.append(buffer)
        self._retained = self.replayable() or [buffer][: self._stored]
