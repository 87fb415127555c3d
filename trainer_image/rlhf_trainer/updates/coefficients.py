"""Coefficients that adapt after each step."""

from rlhf_api.graph import POLICY

from ..graph.learner import Learner
from ..tensors.columns import Columns
from .entropy_control import adapt_entropy_coefficient
from .kl_control import adapt_kl_coefficient


def adapt_coefficients(learner: Learner, columns: Columns, metrics: dict[str, float], step: int) -> None:
    """Adapts those of the KL and the entropy, unless the critic alone is trained: then the KL is 0, whatever the
    coefficient. `columns`: the step's own responses; `metrics`: those of its updates, and where both are put."""
    if any(node.model == POLICY and step >= node.from_step for node in learner.graph.train):
        adapt_kl_coefficient(learner.op_ctx, columns, metrics)
        adapt_entropy_coefficient(learner.op_ctx, metrics)
