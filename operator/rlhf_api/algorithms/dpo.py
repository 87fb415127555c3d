"""Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290)."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ..errors.problem import Problem
from ..field_types import Frozen, PositiveFloat
from ..graph import POLICY, SEQUENCES, Dataset, Graph, Train
from ..sections.common import CommonSpec
from .base import Algorithm
from .nodes import reference


class DPO(Frozen):
    """Direct preference optimization of the policy on pairs of responses, without sampling."""

    beta: PositiveFloat = 0.1
    """Strength of the implicit KL penalty to the reference (Rafailov et al. 2023)."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """DPO's logistic loss, or IPO's squared one (Azar et al. 2023)."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of preference labels assumed to be wrong (conservative DPO); for `sigmoid`."""


def _graph(spec: CommonSpec, _settings: DPO) -> Graph:
    return Graph(
        (
            Dataset(rows="pairs"),
            reference(spec, output="logprobs_untempered"),
            Train(
                name="train_policy",
                model=POLICY,
                loss="dpo",
                output="logprobs_untempered",
                reads=(SEQUENCES, "reference_logprobs"),
            ),
        )
    )


def _rules(_spec: CommonSpec, where: str, settings: DPO) -> Iterator[Problem]:
    if settings.label_smoothing and settings.loss != "sigmoid":
        message = (
            f"applies only to loss sigmoid; remove it; got {settings.label_smoothing:g} with {settings.loss}"
        )
        yield Problem(f"{where}.labelSmoothing", message)


ALGORITHM = Algorithm(name="dpo", settings=DPO, graph=_graph, rules=_rules)
