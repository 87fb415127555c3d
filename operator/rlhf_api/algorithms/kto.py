"""Kahneman-Tversky optimization of answers that are judged alone (Ethayarajh et al. 2024, arXiv:2402.01306)."""

from collections.abc import Iterator

from ..errors.problem import Problem
from ..field_types import Frozen, PositiveFloat
from ..graph import LABEL, POLICY, SEQUENCES, Compute, Dataset, Graph, Infer, Train
from ..sections.common import CommonSpec
from .base import Algorithm
from .nodes import reference


class KTO(Frozen):
    """Kahneman-Tversky optimization of the policy on answers that are each labeled as desirable or not."""

    beta: PositiveFloat = 0.1
    """Reward per nat, the strength of the implicit KL penalty."""
    desirable_weight: PositiveFloat = 1.0
    """Weight of desirable answers; with undesirableWeight it may balance rows of unequal numbers."""
    undesirable_weight: PositiveFloat = 1.0
    """Weight of undesirable answers."""


def _graph(spec: CommonSpec, _settings: KTO) -> Graph:
    """The source writes each row's answer and, without a label, the next row's answer to the same prompt: of these the
    divergence is estimated that rewards are compared with."""
    output = "logprobs_untempered"
    compared = (
        Infer(name="policy_logprobs", model=POLICY, output=output, writes=("logprobs",)),
        reference(spec, output=output),
    )
    baseline = Compute(
        name="baseline",
        function="mismatched_divergence",
        reads=(LABEL, "logprobs", "reference_logprobs"),
        writes=("kl_baseline",),
    )
    train = Train(
        name="train_policy",
        model=POLICY,
        loss="kto",
        output=output,
        reads=(SEQUENCES, LABEL, "reference_logprobs", "kl_baseline"),
        only=LABEL,
    )
    return Graph((Dataset(rows="labeled", writes=(SEQUENCES, LABEL)), *compared, baseline, train))


def _rules(spec: CommonSpec, _where: str, _settings: KTO) -> Iterator[Problem]:
    if spec.data.prompts_per_step < 2:
        message = "kto compares with answers to other prompts of the step; use at least 2"
        yield Problem("spec.data.promptsPerStep", f"{message}; got {spec.data.prompts_per_step}")


ALGORITHM = Algorithm(name="kto", settings=KTO, graph=_graph, rules=_rules)
