"""`spec.replay`: how a step's responses reach training, and which earlier ones are trained on again."""

from typing import Annotated, Literal

from pydantic import Field

from ..field_types import Frozen, Positive, Sampler

BUILT_IN_SAMPLERS = ("uniform", "newest", "prioritized")
EPISODES = "episodes/"
"""Prefix of a snapshot's episode files; followed by the episode's number and `.parquet`."""

SAMPLER_FIELD = "spec.replay.replaySampleFn"


class Replay(Frozen):
    """Experience replay: earlier responses that are trained on again. An episode is the responses to one step's
    prompts, counted from 1."""

    stream_data_loader_type: Literal["fixed", "dynamic"] = "fixed"
    """`fixed` trains when all responses of the step are there, `dynamic` on each minibatch of responses as it
    arrives.
    """
    max_replay_episode: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Replay window in episodes: -1 keeps all, 0 (unless given) none."""
    replay_episode_offset: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Episodes before this one are never replayed; 0 unless given."""
    replay_sample_fn: Sampler | None = None
    """`uniform` (unless given), `newest`, `prioritized` (by the mean absolute advantage), or a function `(list of
    EpisodeReplayBuffer) -> list of dict`."""
    samples_per_step: Positive | None = None
    """Replayed responses per step, for the built-in samplers; as many as the step's own unless given."""

    @property
    def dynamic(self) -> bool:
        return self.stream_data_loader_type == "dynamic"

    @property
    def window(self) -> int:
        """Replay window in episodes; -1: all."""
        return self.max_replay_episode or 0

    @property
    def offset(self) -> int:
        return self.replay_episode_offset or 0

    @property
    def sampler(self) -> str:
        """Name of a built-in sampler, or an import path."""
        return self.replay_sample_fn or BUILT_IN_SAMPLERS[0]

    @property
    def sampler_is_import(self) -> bool:
        return ":" in self.sampler
