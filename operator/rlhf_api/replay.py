"""`spec.replay`: how a step's answers reach training, and which earlier ones are trained on again."""

from typing import Annotated, Literal

from pydantic import Field

from .base import Frozen, Positive, Sampler

BUILT_IN_SAMPLERS = ("uniform", "newest", "prioritized")
EPISODES = "episodes/"
"""Prefix of a snapshot's episode files; the number of the episode and `.parquet` follow."""

Window = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Replay(Frozen):
    """Earlier answers that are trained on again. An episode is the answers to one step's prompts, counted from 1.
    Fields with `relay` are other spellings."""

    stream_data_loader_type: Literal["fixed", "dynamic"] = "fixed"
    """`fixed` trains when all answers of the step are there, `dynamic` on each minibatch of answers as it comes."""
    max_replay_episode: Window | None = None
    """Number of the last episodes that are kept to be replayed: -1 all of them, 0 (unless given) none."""
    replay_episode_offset: Offset | None = None
    """Episodes before this one are never replayed; 0 unless given."""
    replay_sample_fn: Sampler | None = None
    """`uniform` (unless given), `newest`, `prioritized` (by the mean absolute advantage), or a function
    `(list of EpisodeReplayBuffer) -> list of dict`."""
    samples_per_step: Positive | None = None
    """Replayed answers in a step, for the built-in samplers; as many as the step's own unless given."""
    max_relay_episode: Window | None = None
    """The same as maxReplayEpisode."""
    relay_episode_offset: Offset | None = None
    """The same as replayEpisodeOffset."""
    relay_sample_fn: Sampler | None = None
    """The same as replaySampleFn."""

    @property
    def dynamic(self) -> bool:
        return self.stream_data_loader_type == "dynamic"

    @property
    def window(self) -> int:
        """Episodes that are kept to be replayed; -1: all."""
        return self.max_replay_episode or self.max_relay_episode or 0

    @property
    def offset(self) -> int:
        return self.replay_episode_offset or self.relay_episode_offset or 0

    @property
    def sampler(self) -> str:
        """The name of a built-in one, or an import path."""
        return self.replay_sample_fn or self.relay_sample_fn or BUILT_IN_SAMPLERS[0]

    @property
    def sampler_field(self) -> str:
        """The manifest's field that names the sampler."""
        return f"spec.replay.{'relaySampleFn' if self.relay_sample_fn else 'replaySampleFn'}"

    @property
    def sampler_is_import(self) -> bool:
        return ":" in self.sampler
