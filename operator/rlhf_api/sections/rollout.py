"""`spec.rollout`: how far generation runs ahead of training, the off-policy correction of the loss, and responses that
are not waited for."""

from typing import Literal

from pydantic import Field

from ..field_types import Frozen

Level = Literal["none", "token", "sequence", "geometric"]


class Rollout(Frozen):
    """Generation ahead of training, in weight versions."""

    max_staleness: int = Field(0, ge=0, le=64)
    """Maximum number of weight versions between sampling a token and training on it; 0: generators wait while the
    policy trains."""
    in_flight: Literal["recompute", "keep"] = "recompute"
    """A response under way when new weights come continues with them: interrupted, its keys and values recomputed,
    or in its stream, with those of earlier weights."""
    proximal: Literal["policy", "sampled"] = "policy"
    """Importance ratios are relative to the policy before the step, at the cost of one more forward pass, or to the
    sampler.
    """
    importance: Level | None = None
    """Importance weight of the loss, p / p_sampler before the step: per token, per response, or its tokens'
    geometric mean. Unless given `token` with maxStaleness above 0, else none."""
    importance_cap: float = Field(2.0, gt=1)
    """Truncated importance sampling: higher weights are set to this one."""
    importance_mask: float | None = Field(None, gt=1)
    """Tokens or responses with a weight above this one, or below its inverse, are left out of the loss."""

    oversampling: float = Field(0.0, ge=0, le=1)
    """Share of `data.promptsPerStep` that a step asks for beyond them: it trains on those that are complete first,
    and stops the others, which make steps of their own (docs/guides/data.md)."""

    @property
    def level(self) -> Level:
        """The correction in effect."""
        if self.importance is None:
            return "token" if self.max_staleness and self.proximal == "policy" else "none"
        return self.importance
