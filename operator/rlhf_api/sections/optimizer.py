"""`spec.optimizer`: AdamW, and the learning rates."""

from typing import Literal

from pydantic import Field

from ..field_types import Decay, Epsilon, Frozen, NonNegativeFloat, Positive, PositiveFloat

CRITIC_RATE = 10.0
"""Learning rate of a critic, as a multiple of a whole policy's (see docs/reference/algorithms.md for the source)."""
WHOLE_CRITIC = 1e-5
"""Learning rate of a whole critic beside a policy's adapter: `CRITIC_RATE` times the default of a whole policy."""


class Optimizer(Frozen):
    """AdamW, for every trained model; Muon for their matrices where it is chosen."""

    matrices: Literal["adamw", "muon"] = "adamw"
    """Optimizer of the hidden layers' matrices. Embeddings, heads, norms and biases always have AdamW."""
    moments: Literal["float32", "8bit"] = "float32"
    """How AdamW's two moments are kept. `8bit`: in blocks of 256 numbers that share a scale, a quarter of the bytes."""
    learning_rate: NonNegativeFloat = 1e-6
    critic_learning_rate: NonNegativeFloat | None = None
    """Learning rate of the critic. Unless given ten times `learningRate`; beside a policy with an adapter,
    `learningRate` if it has one too, else 1e-5."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after the warm-up."""
    floor: float = Field(0.0, ge=0, lt=1)
    """Share of the learning rate to which it falls."""
    decay_steps: Positive | None = None
    """Last training steps, in which alone it falls (WSD); all after the warm-up unless given."""
    warmup_steps: int = Field(0, ge=0)
    """Training steps in which the learning rate rises to its value."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    epsilon: Epsilon = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    gradient_clip: PositiveFloat = 1.0
    """Maximum 2-norm of the whole gradient."""
