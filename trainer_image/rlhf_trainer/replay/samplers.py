"""Samplers that select earlier responses to train on again: the built-in ones, and a user's function."""

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from rlhf_api.errors.problem import InvalidJob, Problem, show
from rlhf_api.host.imports import described
from rlhf_api.sections.replay import SAMPLER_FIELD, Replay

from ..process.imports import import_function
from .buffer import EpisodeReplayBuffer

Sample = dict[str, Any]
Buffers = list[EpisodeReplayBuffer]
Picks = list[tuple[int, int]]
"""(episode, index) of each response."""


def uniform(buffers: Buffers, count: int, rng: random.Random) -> list[Sample]:
    """Uniform sampling without replacement from the window."""
    samples = [sample for buffer in buffers for sample in buffer.buffer]
    return rng.sample(samples, min(count, len(samples)))


def newest(buffers: Buffers, count: int, rng: random.Random) -> list[Sample]:  # noqa: ARG001
    """Responses of the newest episodes first."""
    return list(islice((sample for buffer in reversed(buffers) for sample in buffer.buffer), count))


def prioritized(buffers: Buffers, count: int, rng: random.Random) -> list[Sample]:
    """Sampling without replacement, with probability proportional to the mean absolute advantage of the response's
    tokens.

    By Efraimidis and Spirakis: the `count` largest of log(u) / weight, u uniform in (0, 1].
    """
    samples = [sample for buffer in buffers for sample in buffer.buffer]
    weights = [float(np.abs(sample["advantages"]).mean()) for sample in samples]
    floor = 1e-6  # a response with zero advantage is drawn only when nothing else is left
    keys = [float(np.log(1.0 - rng.random())) / max(weight, floor) for weight in weights]
    order = sorted(range(len(samples)), key=lambda i: keys[i], reverse=True)
    return [samples[i] for i in order[:count]]


BUILT_IN = {"uniform": uniform, "newest": newest, "prioritized": prioritized}


class EpisodeSampler:
    """The manifest's sampler of replayed responses. On rank 0: user code runs only there."""

    def __init__(self, replay: Replay, seed: int) -> None:
        """Loads the sampler. Raises InvalidJob if it cannot be imported."""
        self._replay, self._seed = replay, seed
        self._function: Callable[[Buffers], Any] | None = None
        if replay.window and replay.sampler_is_import:
            self._function = import_function(replay.sampler, SAMPLER_FIELD)

    def picks(self, window: Buffers, fresh: EpisodeReplayBuffer, step: int) -> Picks:
        """Rows to train on in addition to `fresh`, all of which is trained on anyway.

        A user's function gets `fresh` as the last buffer; rows of it that it returns are ignored. Raises InvalidJob
        where it raises, or returns anything but samples of its buffers.
        """
        if not window:
            return []
        if self._function is None:
            count = self._replay.samples_per_step or len(fresh.episode)
            rng = random.Random(f"{self._seed}/{step}")
            samples = BUILT_IN[self._replay.sampler](window, count, rng)
            return [(sample["episode"], sample["index"]) for sample in samples]
        sizes = {buffer.episode_id: len(buffer.episode) for buffer in (*window, fresh)}
        picks = [self._pick(sample, sizes) for sample in self._ask([*window, fresh])]
        return [pick for pick in picks if pick[0] != fresh.episode_id]

    def _ask(self, buffers: Buffers) -> Sequence[Any]:
        assert self._function is not None
        try:
            returned = self._function(buffers)
        except Exception as error:
            raise self._wrong(f"the function raised {described(error)}") from error
        if not isinstance(returned, list | tuple):
            raise self._wrong(f"returned a {type(returned).__name__}, not a list of samples")
        return returned

    def _pick(self, sample: Any, sizes: dict[int, int]) -> tuple[int, int]:
        if not isinstance(sample, dict):
            raise self._wrong(
                f"returned a list with a {type(sample).__name__}, not of samples (dictionaries)"
            )
        episode, index = sample.get("episode"), sample.get("index")
        if not isinstance(episode, int) or not isinstance(index, int):
            raise self._wrong(
                "returned a dictionary that is not a sample of its buffers: its `episode` and `index` are "
                f"{show(episode)} and {show(index)}"
            )
        if episode not in sizes or not 0 <= index < sizes[episode]:
            raise self._wrong(
                f"returned response {index} of episode {episode}, which is in none of its buffers"
            )
        return episode, index

    def _wrong(self, message: str) -> InvalidJob:
        return InvalidJob([Problem(SAMPLER_FIELD, message)])
