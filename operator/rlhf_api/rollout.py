"""`spec.rollout`: how far generation runs ahead of training, and how the loss is corrected for it."""

from typing import Literal

from pydantic import Field

from .base import Frozen

Level = Literal["none", "token", "sequence"]


class Rollout(Frozen):
    """Generation ahead of training, in weight versions."""

    max_staleness: int = Field(0, ge=0, le=64)
    """No token is trained on by weights that are more versions newer than those that sampled it; 0: generators wait
    while the policy trains."""
    in_flight: Literal["recompute", "keep"] = "recompute"
    """A response that new weights interrupt goes on with them: after its keys and values are computed anew, or with
    those of the weights before."""
    proximal: Literal["policy", "sampled"] = "policy"
    """Importance ratios are to the policy before the step, for one more forward pass, or to what sampled."""
    importance: Level | None = None
    """Weight of the loss by p / p_sampler before the step: of each token, or of each response. Unless given `token`
    with maxStaleness above 0, else none."""
    importance_cap: float = Field(2.0, gt=1)
    """Higher weights count as this one (truncated importance sampling)."""
    importance_mask: float | None = Field(None, gt=1)
    """Tokens or responses with a weight above this one, or below its inverse, are left out."""

    @property
    def level(self) -> Level:
        """The correction in force."""
        if self.importance is None:
            return "token" if self.max_staleness and self.proximal == "policy" else "none"
        return self.importance
