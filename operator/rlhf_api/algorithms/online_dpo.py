"""Direct preference optimization of responses that the policy samples (Guo et al. 2024, arXiv:2402.04792)."""

from collections.abc import Iterator
from dataclasses import replace

from ..errors.problem import Problem, show
from ..field_types import Positive
from ..graph import PREFERENCE, Compute, Generate, Graph
from ..sections.common import CommonSpec
from .base import Algorithm
from .dpo import DPO, preference_nodes, preference_rules
from .nodes import add_environment, scores
from .policy_gradient import GROUPED, SampledResponses, compared_rules, sampled_rules


class OnlineDPO(SampledResponses, DPO):
    """DPO on the policy's own responses: of those to a prompt, the one with the highest reward and the one with the
    lowest are a pair."""

    minibatch_size: Positive = 64
    """Responses whose pairs are one optimizer update, over all ranks. If a step has no multiple of it, its updates
    have equally many, nearest to this."""


def _graph(spec: CommonSpec, settings: OnlineDPO) -> Graph:
    """Log-probabilities are at the sampling temperature: those of the policy that samples."""
    compared, train = preference_nodes(spec, settings, "logprobs")
    begin = (Generate(rounds=settings.dynamic_sampling), *compared, *scores(spec))
    pairs = Compute(
        name="pairs", function="best_and_worst", reads=("scores", "position"), writes=(PREFERENCE,)
    )
    train = replace(
        train,
        reads=(*train.reads, "sampled_logprobs", PREFERENCE),
        pairs=PREFERENCE,
        minibatch_size=settings.minibatch_size,
        epochs=settings.epochs,
    )
    return Graph((*add_environment(begin, spec), pairs, train))


def _rules(spec: CommonSpec, where: str, settings: OnlineDPO) -> Iterator[Problem]:
    yield from sampled_rules(spec, where, settings)
    yield from compared_rules(spec)
    yield from preference_rules(where, settings)
    given = spec.rollout.model_dump(by_alias=True, exclude_defaults=True)
    of_ratios = ("proximal", "importance", "importanceCap", "importanceMask")
    # Without a correction, the rules of `spec.rollout` refuse what bounds one.
    for key in of_ratios if spec.rollout.level != "none" else of_ratios[:2]:
        if given.get(key, "none") != "none":
            message = (
                "is of importance ratios, and the loss of pairs has none, whoever sampled them; remove it"
            )
            yield Problem(f"spec.rollout.{key}", f"{message}; got {show(given[key])}")


ALGORITHM = Algorithm(name="online_dpo", settings=OnlineDPO, graph=_graph, rules=_rules, usual=GROUPED)
