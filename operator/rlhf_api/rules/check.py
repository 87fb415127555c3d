"""Rules that span several fields of a spec, each naming the field that breaks it."""

import re
from collections.abc import Callable, Iterator

from pydantic.alias_generators import to_camel

from ..algorithms import ALGORITHMS, CUSTOM, algorithm_of, settings_of
from ..errors.problem import Problem, path, show
from ..estimate import resources
from ..roles import Role
from ..sections.reward import ENVIRONMENT
from ..spec import Spec
from . import (
    architectures,
    data,
    environment,
    evaluation,
    experts,
    health,
    lora,
    replay,
    rollout,
    sampling,
    sandbox,
    trackers,
    trainer,
    unused,
    vision,
)
from .deepspeed import combinations as deepspeed_combinations
from .deepspeed import eight_bit, muon
from .deepspeed import keys as deepspeed
from .engines import generator, model_servers
from .pods import settings as pods

Rule = Callable[[Spec], Iterator[Problem]]


def _algorithm(spec: Spec) -> Iterator[Problem]:
    """Rules of the job's algorithm; settings of any other one would have no effect."""
    chosen = algorithm_of(spec)
    for other in (*ALGORITHMS.values(), CUSTOM):
        if other.settings and other is not chosen and other.section in spec.model_fields_set:
            field = Spec.model_fields[other.section]
            if getattr(spec, other.section) != field.default:
                used = f"has spec.{to_camel(chosen.section)}" if chosen.settings else "has no settings"
                yield Problem(
                    f"spec.{field.alias or other.section}",
                    f"is for algorithm {other.name if other is not CUSTOM else 'module:name'}; this job's is "
                    f"{spec.algorithm}, which {used}; remove this",
                )
    if chosen.rules is not None:
        yield from chosen.rules(spec, f"spec.{to_camel(chosen.section)}", settings_of(spec))


def _policy(spec: Spec) -> Iterator[Problem]:
    if (spec.model.policy is None) == (spec.model.create is None):
        given = "neither is" if spec.model.policy is None else "both are"
        yield Problem(
            "spec.model", f"needs exactly one of policy (a path or hub name) and create; {given} set"
        )
    if spec.model.create is not None and spec.graph.generates:
        yield Problem(
            "spec.model.create",
            f"{spec.algorithm} needs a policy that already answers: train one with algorithm sft first, "
            "then give its path as spec.model.policy",
        )


def _reward(spec: Spec) -> Iterator[Problem]:
    if Role.REWARD not in spec.graph.roles:
        return
    if not spec.has_reward:
        yield Problem(
            "spec.reward",
            "nothing scores the answers: set spec.model.reward (a reward model), spec.reward.functions, or "
            "spec.environment, whose episodes have rewards",
        )
    yield from _names(spec)
    if spec.reward.fine_grained and spec.reward.bias:
        yield Problem(
            "spec.reward.bias",
            f"would be added to every token with fineGrained; use 0; got {spec.reward.bias:g}",
        )
    yield from _step_scores(spec)
    if spec.reward.clip is not None and spec.reward.clip[0] >= spec.reward.clip[1]:
        yield Problem(
            "spec.reward.clip", f"the lower bound must be below the upper; got {list(spec.reward.clip)}"
        )


def _names(spec: Spec) -> Iterator[Problem]:
    """Problems of rewards with a name that an earlier one has, or an environment's reward in the metrics."""
    names = set[str]() if spec.environment is None else {ENVIRONMENT}
    for where, given in (
        *((model.where.removesuffix(".model"), model.name) for model in spec.reward_models),
        *((f"spec.reward.functions[{i}]", entry.metric) for i, entry in enumerate(spec.reward.functions)),
    ):
        if given in names:
            message = f"two rewards are {given!r} in the metrics; give this one another name"
            yield Problem(f"{where}.name", message)
        names.add(given)


def _step_scores(spec: Spec) -> Iterator[Problem]:
    """Problems of scores of steps where rewards are of other parts of a response."""
    how, fine_grained, where = spec.reward.step_scores, spec.reward.fine_grained, "spec.reward.stepScores"
    if how == "each" and not fine_grained:
        message = "gives tokens rewards, at the ends of steps; set fineGrained, or use min, product or last"
        yield Problem(where, f"{message}; got 'each'")
    elif how not in (None, "each") and fine_grained:
        message = "scores a whole response, and fineGrained is of tokens; use each, or fineGrained false"
        yield Problem(where, f"{message}; got {show(how)}")


def _evaluation(spec: Spec) -> Iterator[Problem]:
    yield from evaluation.problems(spec, sampled=spec.graph.generates)


def _checkpoint(spec: Spec) -> Iterator[Problem]:
    if spec.checkpoint.keep_best and spec.evaluation is None:
        yield Problem(
            "spec.checkpoint.keepBest",
            "needs evaluations to tell which checkpoints are best: set spec.evaluation, or use 0; "
            f"got {spec.checkpoint.keep_best}",
        )
    every, keep_every = spec.checkpoint.every_steps, spec.checkpoint.keep_every
    if keep_every % every:
        message = (
            f"must be a multiple of everySteps, {every}: only at those steps are there checkpoints to keep"
        )
        yield Problem("spec.checkpoint.keepEvery", f"{message}; got {keep_every}")
    judged = spec.evaluation.every_steps if spec.evaluation else every
    if spec.checkpoint.keep_best and every % judged and judged % every:
        message = f"ranks checkpoints by an evaluation of the same step: make spec.evaluation.everySteps ({judged}) a"
        message = f"{message} multiple of checkpoint.everySteps ({every}), or the other way round"
        yield Problem("spec.checkpoint.keepBest", f"{message}; got {spec.checkpoint.keep_best}")
    origin = spec.checkpoint.start_from
    if origin is not None and origin.step >= spec.steps:
        message = f"must be below spec.steps ({spec.steps}), the steps of the whole run; got {origin.step}"
        yield Problem("spec.checkpoint.startFrom.step", message)
    if origin is not None and origin.store.rstrip("/") == (spec.checkpoint.store or "").rstrip("/"):
        message = f"is this run's own spec.checkpoint.store; name another one there; got {show(origin.store)}"
        yield Problem("spec.checkpoint.startFrom.store", message)


def _variables(spec: Spec) -> Iterator[Problem]:
    for key, value in spec.env.items():
        where = path(("spec", "env", key))
        if key.startswith("RLHF_"):
            yield Problem(
                where, f"names that begin with RLHF_ are reserved; use another name; got {show(value)}"
            )
        elif not re.fullmatch(r"[A-Za-z_.-][A-Za-z0-9_.-]*", key):
            yield Problem(where, f"is not a valid name of an environment variable; got {show(value)}")


RULES: tuple[Rule, ...] = (
    *(_algorithm, _policy, architectures.problems, vision.problems, _reward, sampling.problems),
    *(trainer.batches, trainer.critic),
    *(
        trainer.sequence_parallel,
        replay.problems,
        rollout.problems,
        lora.problems,
        lora.frozen,
        experts.problems,
    ),
    *(unused.problems, generator.autoscale, generator.pods_per_replica),
    *(environment.problems, sandbox.problems, _evaluation, _checkpoint),
    *(
        deepspeed.precision,
        deepspeed.optimizer,
        deepspeed.adam,
        deepspeed.disks,
        deepspeed.unread,
        deepspeed.switched_off,
        deepspeed.averages,
        deepspeed_combinations.low_precision_masters,
        deepspeed_combinations.offloading,
        deepspeed_combinations.secondary_partitions,
        muon.problems,
        eight_bit.problems,
        health.problems,
    ),
    *(generator.engine_arguments, model_servers.problems, trackers.problems, _variables),
    *(data.problems, pods.pods, pods.workspace, pods.scheduling, resources.problems),
)
"""Rules, in the order in which their problems are reported."""


def check(spec: Spec) -> list[Problem]:
    """Every cross-field problem of a spec; empty when it can run."""
    return [problem for rule in RULES for problem in rule(spec)]


CHANGEABLE = ("suspend", "active_deadline_seconds", "ttl_seconds_after_finished", "pod_retention")
"""Fields that may change while a job runs, besides the number of generators; all others only while it is suspended."""


MANAGER_STAYS = "never changes; delete the job and make it anew"


def check_change(before: Spec, after: Spec) -> list[Problem]:
    """Problems of a change: of any field while the job is not suspended, and ever of its manager."""
    if before.managed_by != after.managed_by:
        return [Problem("spec.managedBy", MANAGER_STAYS)]
    if before.suspend:
        return []
    after = after.model_copy(
        update={
            "generator": after.generator.model_copy(update={"replicas": before.generator.replicas}),
            **{name: getattr(before, name) for name in CHANGEABLE},
        }
    )
    return [
        Problem(
            f"spec.{field.alias or name}",
            "cannot change while the job runs; suspend it first (spec.suspend: true)",
        )
        for name, field in Spec.model_fields.items()
        if getattr(before, name) != getattr(after, name)
    ]
