"""Rules of `spec.rollout`."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ..errors.problem import Problem, show
from ..graph import Generate, Graph
from ..sections.rollout import Rollout
from ..spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of fields of `spec.rollout` without effect in this job, or that contradict others."""
    rollout, default = spec.rollout, Rollout()
    if not spec.graph.generates:
        return
    ahead = rollout.max_staleness
    if ahead and spec.generator.shared_with_trainer:
        yield Problem(
            "spec.rollout.maxStaleness",
            f"generation ahead of training needs generators, and spec.generator.sharedWithTrainer leaves none; use 0; "
            f"got {ahead}",
        )
    if ahead and spec.replay.dynamic:
        yield Problem(
            "spec.rollout.maxStaleness",
            f"replay.streamDataLoaderType dynamic trains only on responses of its own step; use fixed there, or 0 "
            f"here; got {ahead}",
        )
    if ahead and spec.weights.every_steps > ahead + 1:
        yield Problem(
            "spec.weights.everySteps",
            f"the generators' weights would become older than rollout.maxStaleness ({ahead}) allows; use at most "
            f"{ahead + 1}; got {spec.weights.every_steps}",
        )
    for name in ("in_flight", "proximal"):
        if not ahead and getattr(rollout, name) != getattr(default, name):
            message = f"applies only with maxStaleness above 0; remove it; got {getattr(rollout, name)!r}"
            yield Problem(f"spec.rollout.{to_camel(name)}", message)
    yield from _oversampling(spec)
    if rollout.level == "none":
        for name in ("importance_cap", "importance_mask"):
            if getattr(rollout, name) != getattr(default, name):
                message = (
                    f"applies only with importance; set that, or remove this; got {getattr(rollout, name):g}"
                )
                yield Problem(f"spec.rollout.{to_camel(name)}", message)
        return
    if rollout.proximal == "sampled" or spec.replay.dynamic or (spec.weights.every_steps > 1 and not ahead):
        yield Problem(
            "spec.rollout.importance",
            "needs log-probabilities of the policy before the step, and this job uses the sampler's in their place "
            f"(rollout.proximal, replay.streamDataLoaderType or weights.everySteps); change that, or use none; got "
            f"{rollout.level!r}",
        )
    mask, cap = rollout.importance_mask, rollout.importance_cap
    if mask is not None and mask <= cap and "importance_cap" in rollout.model_fields_set:
        message = (
            f"never acts: importanceMask {mask:g} drops such weights first; remove one of them; got {cap:g}"
        )
        yield Problem("spec.rollout.importanceCap", message)


def _oversampling(spec: Spec) -> Iterator[Problem]:
    """Problems of `oversampling` where no response can be stopped, or none has to be, or which one is stopped would
    matter."""
    source, share = spec.graph.source, spec.rollout.oversampling
    if not share:
        return
    reasons = {
        "the trainer generates all responses of a step as one batch (spec.generator.sharedWithTrainer); remove it": (
            spec.generator.shared_with_trainer
        ),
        "with maxStaleness above 0 the generators go on with later steps while a long response ends; use one of both": (
            spec.rollout.max_staleness > 0
        ),
        "the prompts of a step depend on time, and a deterministic trainer (spec.trainer.deterministic) repeats "
        "steps; use one of both": spec.trainer.deterministic,
        "given responses are complete at once, so that the steps of others would have too many of them; without "
        "spec.distillation.givenShare": isinstance(source, Generate) and source.given > 0,
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        yield Problem("spec.rollout.oversampling", f"{reason}; got {share:g}")


def uncorrected(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Problems of fields of the off-policy correction, in a job whose own graph computes none; the package's own graphs
    compute it where it is set."""
    if spec.rollout.level == "none" or any("importance_weights" in node.writes for node in graph.nodes):
        return
    given = spec.rollout.model_dump(by_alias=True, exclude_defaults=True)
    for key in (key for key in given if key.startswith("importance")):
        message = f"the graph of {spec.algorithm!r} computes no importance_weights; remove it; got {show(given[key])}"
        yield Problem(f"spec.rollout.{key}", message)
