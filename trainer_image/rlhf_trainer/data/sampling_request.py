"""Settings with which the responses to a batch of prompts are sampled."""

from dataclasses import dataclass

from rlhf_api.sections.evaluation import NO_PENALTIES, Penalties
from rlhf_api.sections.sampling import Sampling


@dataclass(frozen=True)
class SamplingRequest:
    """The request of a caller to the engine that samples, beside the prompts."""

    sampling: Sampling
    penalties: Penalties = NO_PENALTIES
    masks: bool = True
    """True if tokens come with their sampling masks, where training replays them."""
