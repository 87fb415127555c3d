"""Rules of `spec.evaluation`."""

from collections.abc import Iterator

from ..algorithms import CUSTOM, algorithm_of
from ..errors.problem import Problem, show
from ..field_types import COLDEST, PENALTIES
from ..roles import Role
from ..sections.evaluation import Evaluation, EvaluationSet
from ..spec import Spec


def problems(spec: Spec, *, sampled: bool) -> Iterator[Problem]:
    """Problems of the section; `sampled`: the algorithm samples responses."""
    section = spec.evaluation
    if section is None:
        return
    if sampled:
        yield from _metrics(spec, section)
    else:
        yield from _of_responses("spec.evaluation", section, spec.algorithm)
        for i, evaluation_set in enumerate(section.sets or ()):
            yield from _of_responses(f"spec.evaluation.sets[{i}]", evaluation_set, spec.algorithm)
    if (section.data is None) == (section.sets is None):
        given = "neither is" if section.data is None else "both are"
        message = f"needs exactly one of data (files) and sets (objects with name and data); {given} set"
        yield Problem("spec.evaluation", message)
        return
    names = list[str]()
    for i, evaluation_set in enumerate(spec.evaluation_sets()):
        where = f"spec.evaluation.sets[{i}]" if section.sets else "spec.evaluation"
        if evaluation_set.name in names:
            message = f"two sets have this name; give this one another; got {evaluation_set.name!r}"
            yield Problem(f"{where}.name", message)
        names.append(evaluation_set.name)
        if evaluation_set.temperature == 0 and evaluation_set.samples != 1:
            message = f"at temperature 0 all responses to a prompt are the same; use 1; got {evaluation_set.samples}"
            yield Problem(f"{where}.samples", message)
        if evaluation_set.temperature is not None and 0 < evaluation_set.temperature < COLDEST:
            message = f"must be 0, which is greedy, or at least {COLDEST:g}, the lowest that vLLM samples at"
            yield Problem(f"{where}.temperature", f"{message}; got {evaluation_set.temperature:g}")


def _metrics(spec: Spec, section: Evaluation) -> Iterator[Problem]:
    """Problems of what judges sampled responses."""
    if section.function is None and section.metrics is None and spec.environment is None:
        message = (
            "is required and missing: it judges the responses; so do metrics, of which there may be several"
        )
        yield Problem("spec.evaluation.function", message)
    if section.function is not None and section.metrics is not None:
        message = "is the short form of one metric, and metrics is set too; make it one of these"
        yield Problem("spec.evaluation.function", f"{message}; got {show(section.function)}")
    if Role.REWARD not in spec.graph.roles:
        message = f"runs in the reward role, and the job has none: {_without_reward(spec)}"
        if section.function is not None:
            yield Problem("spec.evaluation.function", f"{message}; got {show(section.function)}")
        elif section.metrics is not None:
            yield Problem("spec.evaluation.metrics", f"{message}; got {len(section.metrics)}")
        return
    names, models = set[str](), [model.name for model in spec.reward_models]
    for where, metric in section.placed_metrics.items():
        if metric.metric in names:
            message = "two metrics have this name; give this one another"
            yield Problem(f"{where}.name", f"{message}; got {metric.metric!r}")
        names.add(metric.metric)
        if metric.model is not None and metric.model not in models:
            there = f"has {', '.join(models)}" if models else "has none"
            message = (
                f"must name a reward model of the job, which {there} (spec.reward.models, spec.model.reward)"
            )
            yield Problem(f"{where}.model", f"{message}; got {metric.model!r}")


def _without_reward(spec: Spec) -> str:
    """The reason that a job which samples responses has no reward role, and what to do."""
    if spec.environment is not None:
        return "the environment's rewards judge held-out episodes; remove it"
    if algorithm_of(spec) is CUSTOM:
        return "its graph has no Score node (spec.custom.scores); remove it"
    return "set spec.reward.functions; those of weight 0 are measured, and nothing is learned from them"


def _of_responses(where: str, section: Evaluation | EvaluationSet, algorithm: str) -> Iterator[Problem]:
    """Problems of fields about sampled responses, for an algorithm that samples none."""
    for name in ("function", "metrics", "samples", "temperature", *PENALTIES):
        if name in section.model_fields_set and (value := getattr(section, name)) is not None:
            message = (
                f"applies only to sampled responses, and {algorithm} is evaluated by its loss; remove it"
            )
            yield Problem(f"{where}.{name}", f"{message}; got {show(value)}")
