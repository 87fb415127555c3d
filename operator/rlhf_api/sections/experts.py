"""`spec.experts`: training of a mixture of experts."""

from typing import Literal

from ..field_types import Frozen, NonNegativeFloat


class Experts(Frozen):
    """Settings of a policy that is a mixture of experts; for others they are refused."""

    replay: Literal["none", "policy", "rollout"] = "none"
    """Choices of experts that the updates use: `policy`: of the policy before the step; `rollout`: of the generators
    (docs/guides/models/experts.md)."""
    balance_coefficient: NonNegativeFloat = 0.0
    """Coefficient of the loss that evens out the load of each layer's experts (docs/guides/models/experts.md)."""
