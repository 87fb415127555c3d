"""Refuses fields of a part that the job does not have, as no process would read them.

The parts follow from the graph and the roles: each role, the critic, the reference, sampled and given responses. A
field of a missing part may only have its default, written out or not.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from ..algorithms import algorithm_of, settings_of, teachers_of
from ..algorithms.distillation import Distillation
from ..algorithms.dpo import DPO
from ..algorithms.policy_gradient import PolicyGradient, SampledResponses
from ..contract.run import dtype_of, role_views, roles_of
from ..errors.problem import Problem, show
from ..field_types import Frozen
from ..graph import CRITIC, REFERENCE_COLUMNS, Generate
from ..roles import Role
from ..sections.roles import RoleSpec
from ..spec import Spec

COMPARED = ("logprob_difference", "logprob_outliers")
"""Fields of spec.health: limits of the difference between generators and trainer."""


class _Unread(NamedTuple):
    """Fields of a section, by Python name; the missing part `of` which they are settings, and `why` it is missing."""

    where: str
    section: BaseModel
    fields: Iterable[str]
    of: str
    why: str


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of fields that no part of the job reads, in the order of the parts."""
    for unread in (
        *_roles(spec),
        *_placement(spec),
        *_critic(spec),
        *_head(spec),
        *_schedule(spec),
        *_settings(spec),
        *_teachers(spec),
        *_steps(spec),
        *_responses(spec),
        *_scores(spec),
        *_curriculum(spec),
        *_compared(spec),
    ):
        keys = {type(unread.section).model_fields[name].alias or name for name in unread.fields}
        given = unread.section.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for key in (key for key in given if key in keys):
            message = f"applies only to {unread.of}, and the job has none: {unread.why}; remove it"
            yield Problem(f"{unread.where}.{key}", f"{message}; got {show(given[key])}")


def _roles(spec: Spec) -> Iterator[_Unread]:
    """The section of each role without processes, and the model that only this role would load."""
    there = roles_of(spec)
    for role in (role for role in Role if role not in there):
        section = spec.section(role)
        of, reason, fields = (
            f"the {role.value} role",
            _absence_reason(spec, role),
            set(type(section).model_fields),
        )
        if role is Role.GENERATOR:
            yield _Unread("spec.weights", spec.weights, type(spec.weights).model_fields, of, reason)
            if spec.graph.generates:  # sharedWithTrainer is what says that there are none
                fields = fields - {"shared_with_trainer"}
        if role is Role.REWARD and spec.environment is not None:  # which may fail too
            fields = fields - {"max_failed_share"}
        if role is Role.ENVIRONMENT:  # whose own fields act beside the trainer too
            fields = set(RoleSpec.model_fields) if spec.graph.generates else set()
        if role is Role.SANDBOX:
            yield _Unread("spec", spec, ["sandbox"], "episodes", reason)
            continue
        yield _Unread(f"spec.{role.value}", section, fields, of, reason)
        if role.row.model is not None and not starts_critic(spec, role.row.model):
            yield _Unread("spec.model", spec.model, [role.row.model], of, reason)


def _placement(spec: Spec) -> Iterator[_Unread]:
    """The placement of a job that has but one role with processes."""
    if roles_of(spec) == (Role.TRAINER,):
        reason = "the trainer is its only role"
        yield _Unread("spec", spec, ["placement"], "roles that may share the trainer's GPUs", reason)


def _absence_reason(spec: Spec, role: Role) -> str:
    """The reason that the job has no processes of a role."""
    if role is Role.REFERENCE:
        return _without_reference(spec)
    if role is Role.GENERATOR and spec.graph.generates:
        return "the trainer generates (spec.generator.sharedWithTrainer)"
    if role is Role.REWARD and spec.environment is not None:
        return "the environment's rewards are the scores (spec.environment)"
    if role is Role.REWARD and spec.graph.generates and ":" not in spec.algorithm:
        return "none of spec.reward.functions, spec.reward.models and spec.model.reward scores responses"
    if role is Role.ENVIRONMENT:
        return "spec.environment.replicas is 0"
    if role is Role.SANDBOX and spec.graph.generates:
        return "spec.environment is not set"
    nothing = {"generate": "samples no responses", "score": "scores no responses"}
    return f"{spec.algorithm} {nothing.get(role.row.work, 'asks none')}"


def _without_reference(spec: Spec) -> str:
    """The reason that nothing asks for a reference role."""
    where, settings = f"spec.{to_camel(algorithm_of(spec).name)}", settings_of(spec)
    if isinstance(settings, PolicyGradient) and settings.kl_penalty is None:
        return f"{where}.klCoefficient is 0"
    if isinstance(settings, PolicyGradient) and settings.reference_ema is not None:
        return f"the moving average of the policy takes its place ({where}.referenceEma)"
    if isinstance(settings, DPO) and not settings.has_reference:
        return f"{where}.loss is {settings.loss}"
    if _compares(spec):
        return "the policy without its adapter takes its place (spec.model.lora.policy)"
    return f"{spec.algorithm} compares with none"


def _compares(spec: Spec) -> bool:
    """True if a node compares with a reference."""
    return any(column in node.writes for node in spec.graph.nodes for column in REFERENCE_COLUMNS)


def starts_critic(spec: Spec, field: str) -> bool:
    """True if the critic starts from this model, which no role loads."""
    started = spec.source("critic") if CRITIC in spec.graph.trained else None
    return started is not None and started[0] == "reward" == field


def _critic(spec: Spec) -> Iterator[_Unread]:
    if CRITIC not in spec.graph.trained:
        reason = f"{spec.algorithm} trains none"
        yield _Unread("spec.model", spec.model, ["critic"], "a critic", reason)
        yield _Unread("spec.optimizer", spec.optimizer, ["critic_learning_rate"], "a critic", reason)


def _head(spec: Spec) -> Iterator[_Unread]:
    """The dtype of the logits of models that have none, or that are in float32 all."""
    heads = [model.head for model in spec.graph.trained]
    dtypes = {spec.trained_dtype("policy")} if "causal" in heads else set()
    dtypes |= {
        dtype_of(view, role) for role, view in role_views(spec) if role.row.work in ("generate", "infer")
    }
    of = "a language model in 16 bits"
    if not dtypes:
        yield _Unread(
            "spec.model", spec.model, ["float32_head"], of, f"{spec.algorithm} trains another model"
        )
    elif dtypes == {"float32"}:
        yield _Unread("spec.model", spec.model, ["float32_head"], of, "all compute in float32")


def _schedule(spec: Spec) -> Iterator[_Unread]:
    if spec.optimizer.schedule == "constant":
        of, reason = "a learning rate that falls", "spec.optimizer.schedule is constant"
        yield _Unread("spec.optimizer", spec.optimizer, ["floor", "decay_steps"], of, reason)


def _settings(spec: Spec) -> Iterator[_Unread]:
    """Settings of the divergence from the reference, in a graph without a reference, and settings that another one
    switches off."""
    where, settings = f"spec.{to_camel(algorithm_of(spec).name)}", settings_of(spec)
    if isinstance(settings, SampledResponses) and settings.overlong_buffer == 0:
        yield _Unread(where, settings, ["overlong_penalty"], "a zone", f"{where}.overlongBuffer is 0")
    if not isinstance(settings, PolicyGradient):
        return
    if not _compares(spec):
        named = {name for name in type(settings).model_fields if name.startswith(("kl_", "reference_"))}
        yield _Unread(
            where,
            settings,
            named - {"kl_coefficient", "kl_cov"},
            "a reference",
            f"{where}.klCoefficient is 0",
        )
    elif settings.kl_target is None:
        yield _Unread(where, settings, ["kl_horizon"], "a target", f"{where}.klTarget is not set")
    if isinstance(settings, Distillation):
        yield _distilled(where, settings)
    if settings.kl_penalty == "reward":
        yield _Unread(where, settings, ["kl_corrected"], "a penalty in the loss", f"{where}.klIn is reward")
    if settings.entropy_coefficient == 0:
        of, reason = "an entropy bonus", f"{where}.entropyCoefficient is 0"
        yield _Unread(where, settings, ["entropy_target"], of, reason)


def _distilled(where: str, settings: Distillation) -> _Unread:
    """Settings of the divergence over the teacher's tokens where sampled ones are compared, and the reverse."""
    if settings.teacher_top_k == 0:
        of, reason = "a divergence over several tokens", f"{where}.teacherTopK is 0"
        return _Unread(where, settings, ["beta"], of, reason)
    of, reason = "an estimate from the sampled tokens", f"{where}.teacherTopK compares whole distributions"
    return _Unread(where, settings, ["kl_in", "kl_estimator", "kl_corrected"], of, reason)


def _teachers(spec: Spec) -> Iterator[_Unread]:
    """The teacher of a source where none has a name."""
    of, reason = "teachers with names", "spec.distillation.teachers is not set"
    for number, source in enumerate(() if teachers_of(spec) else spec.data.sources or ()):
        yield _Unread(f"spec.data.sources[{number}]", source, ["teacher"], of, reason)


def _steps(spec: Spec) -> Iterator[_Unread]:
    """The separator of steps, where nothing is of steps."""
    if spec.graph.rows != "stepwise" and spec.reward.step_scores is None:
        reason = (
            "spec.reward.stepScores is not set"
            if spec.graph.generates
            else f"{spec.algorithm} trains on whole responses"
        )
        yield _Unread("spec.data", spec.data, ["step_separator"], "steps", reason)


def _responses(spec: Spec) -> Iterator[_Unread]:
    """Fields of sampled responses where responses are given, and of given responses where they are sampled."""
    if spec.graph.generates:
        if spec.pretraining is None and spec.graph.rows == "prompts":
            reason = f"{spec.algorithm} samples them"
            yield _Unread("spec.data", spec.data, ["max_response_length"], "given responses", reason)
        return
    of, reason = "sampled responses", f"{spec.algorithm} trains on given ones"
    # The functions of an algorithm of one's own may read the sampling, such as its temperature.
    named = (*(() if ":" in spec.algorithm else ("sampling",)), "replay", "rollout", "samples")
    for name in named:
        section: Frozen = getattr(spec, name)
        yield _Unread(f"spec.{name}", section, type(section).model_fields, of, reason)
    yield _Unread("spec", spec, ["pretraining", "environment"], of, reason)
    yield _Unread("spec.health", spec.health, COMPARED, of, reason)


def _scores(spec: Spec) -> Iterator[_Unread]:
    """The reward model and its settings, in a reward role that has functions alone."""
    of = "a reward model"
    if Role.REWARD not in roles_of(spec):
        return
    reason = "spec.model.reward is not set" if spec.model.reward is None else "spec.reward.modelWeight is 0"
    names = [] if spec.reward_models else ["dtype", "step_scores"]
    if spec.model.reward is None:
        names.append("model_weight")
    yield _Unread("spec.reward", spec.reward, names, of, reason)


def _curriculum(spec: Spec) -> Iterator[_Unread]:
    """Solve rates in a job whose responses have no score, or are not all sampled."""
    source, where, of = spec.graph.source, "spec.data", "sampled responses with scores"
    if not isinstance(source, Generate):
        reason = f"{spec.algorithm} trains on given ones"
    elif all("scores" not in node.writes for node in spec.graph.nodes):
        reason = f"{spec.algorithm} scores none"
    elif source.given:
        of, reason = "responses that are all sampled", "spec.distillation.givenShare is above 0"
    else:
        return
    yield _Unread(where, spec.data, ["curriculum"], of, reason)


def _compared(spec: Spec) -> Iterator[_Unread]:
    """Limits of the log-probability difference, in a job that cannot measure it; 0 and 1 switch them off."""
    if not spec.graph.generates:
        return
    reason = ""
    if spec.sampling.cut:
        reason = "sampling.topP, minP, topK, minNewTokens or structuredOutputs leave out what training does not replay"
    elif spec.rollout.max_staleness and spec.rollout.proximal == "sampled":
        reason = "rollout.proximal is sampled"
    if reason:
        of, switched_off = (
            "log-probabilities that are compared",
            {"logprob_difference": 0, "logprob_outliers": 1},
        )
        on = [name for name in COMPARED if getattr(spec.health, name) != switched_off[name]]
        yield _Unread("spec.health", spec.health, on, of, reason)
