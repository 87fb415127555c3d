"""Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290), and its relatives without a reference."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ..errors.problem import Problem
from ..field_types import Frozen, NonNegativeFloat, PositiveFloat
from ..graph import POLICY, SEQUENCES, Dataset, Graph, Infer, Train
from ..sections.common import CommonSpec
from .base import Algorithm
from .nodes import reference


class DPO(Frozen):
    """Direct preference optimization of the policy on pairs of responses, without sampling."""

    beta: PositiveFloat | None = None
    """Reward per nat, the strength of the implicit KL penalty; of orpo the weight of the odds ratio. 0.1 unless given,
    of simpo 2."""
    loss: Literal["sigmoid", "ipo", "simpo", "orpo"] = "sigmoid"
    """DPO's logistic loss, IPO's squared one, or SimPO's or ORPO's, which have no reference."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of preference labels assumed to be wrong (conservative DPO); for sigmoid and simpo."""
    margin: NonNegativeFloat = 0.0
    """Margin that the rewards of a pair should have; for sigmoid and simpo (its gamma)."""
    likelihood_coefficient: NonNegativeFloat | None = None
    """Weight of the chosen responses' negative log-likelihood per token; 0 unless given, of orpo 1."""

    @property
    def has_reference(self) -> bool:
        """True if rewards are relative to a reference."""
        return self.loss in ("sigmoid", "ipo")

    @property
    def scale(self) -> float:
        """`beta`, or what it is unless given."""
        if self.beta is not None:
            return self.beta
        return 2.0 if self.loss == "simpo" else 0.1

    @property
    def likelihood(self) -> float:
        """`likelihood_coefficient`, or what it is unless given."""
        if self.likelihood_coefficient is not None:
            return self.likelihood_coefficient
        return 1.0 if self.loss == "orpo" else 0.0


def preference_nodes(spec: CommonSpec, settings: DPO, output: str) -> tuple[tuple[Infer, ...], Train]:
    """The reference's log-probabilities, if the loss compares with them, and the training of the policy on pairs;
    `output`: the log-probabilities of both."""
    compared = (reference(spec, output=output),) if settings.has_reference else ()
    reads = (SEQUENCES, *(column for node in compared for column in node.writes))
    return compared, Train(name="train_policy", model=POLICY, loss="dpo", output=output, reads=reads)


def preference_rules(where: str, settings: DPO) -> Iterator[Problem]:
    """Problems of settings that the loss does not have."""
    if settings.loss in ("sigmoid", "simpo"):
        return
    for name, value in (("labelSmoothing", settings.label_smoothing), ("margin", settings.margin)):
        if value:
            message = f"applies only to loss sigmoid and simpo; remove it; got {value:g} with {settings.loss}"
            yield Problem(f"{where}.{name}", message)


def _graph(spec: CommonSpec, settings: DPO) -> Graph:
    compared, train = preference_nodes(spec, settings, "logprobs_untempered")
    return Graph((Dataset(rows="pairs"), *compared, train))


def _rules(_spec: CommonSpec, where: str, settings: DPO) -> Iterator[Problem]:
    yield from preference_rules(where, settings)


ALGORITHM = Algorithm(name="dpo", settings=DPO, graph=_graph, rules=_rules)
