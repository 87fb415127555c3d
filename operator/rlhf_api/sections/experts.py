"""`spec.experts`: training of a mixture of experts."""

from ..field_types import Frozen, NonNegativeFloat


class Experts(Frozen):
    """Settings of a policy that is a mixture of experts; for others they are refused."""

    balance_coefficient: NonNegativeFloat = 0.0
    """Coefficient of the loss that evens out the load of each layer's experts (docs/guides/experts.md)."""
