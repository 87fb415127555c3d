"""On-policy distillation (Lu and Thinking Machines Lab 2025, "On-Policy Distillation"; Agarwal et al. 2024,
arXiv:2306.13649; Gu et al. 2024, arXiv:2306.08543)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from pydantic import Field

from ..errors.problem import Problem
from ..field_types import Fraction, PositiveFloat
from ..graph import GIVEN, REFERENCE, REFERENCE_TOP, SEQUENCES, TEACHER, Compute, Generate, Graph, Infer
from ..sections.common import CommonSpec
from ..sections.sampling import MOST_KEPT
from ..sections.teacher import NamedTeacher
from .base import Algorithm
from .nodes import experience, reference, rewarded, train_policy
from .policy_gradient import PolicyGradient, group_rules, policy_gradient_rules


class Distillation(PolicyGradient):
    """The policy samples; a teacher, `model.reference`, judges each token: its advantage is how much likelier the
    teacher finds it. A reward is optional, as in dr_grpo."""

    kl_coefficient: PositiveFloat = 1.0
    """Advantage per nat of log p_teacher - log p, or loss per nat of divergence, beside that of the reward."""
    gamma: Fraction = 0.0
    """Discount factor per token; 0: a token answers for itself alone, 1: for all that follow it too."""
    teacher_top_k: int = Field(0, ge=0, le=MOST_KEPT)
    """The teacher's most probable tokens, over which the loss compares both distributions, all others as one; 0: the
    sampled token alone."""
    beta: Fraction = 1.0
    """Divergence over teacherTopK: 1 reverse KL, 0 forward KL, between them the generalised JSD (GKD)."""

    teachers: tuple[NamedTeacher, ...] = Field((), max_length=16)
    """Teachers in place of `model.reference`, each of the rows that name it in `teacher`."""
    given_share: float = Field(0.0, ge=0, lt=1)
    """Share of prompts whose row's answer is trained on in place of a sampled response (GKD: 1 - lambda)."""

    @property
    def kl_penalty(self) -> Literal["reward", "loss"]:
        """In the loss, where whole distributions are compared."""
        return "loss" if self.teacher_top_k else self.kl_in


def is_scored(spec: CommonSpec) -> bool:
    """True if something besides the teacher scores the responses."""
    return spec.environment is not None or spec.has_reward


def _graph(spec: CommonSpec, settings: Distillation) -> Graph:
    scored = is_scored(spec)
    scores, *compared = rewarded(settings)
    advantages = Compute(
        name="advantages",
        function="distillation",
        reads=(*((scores, "position") if scored else ()), *compared),
        writes=("advantages",),
    )
    begin = experience(
        spec,
        settings,
        scored=scored,
        reference_node=_teacher(spec, settings),
        source=_source(settings),
    )
    return Graph((*begin, advantages, train_policy(begin, settings)))


def _teacher(spec: CommonSpec, settings: Distillation) -> Infer:
    """The teacher's log-probabilities: of the sampled tokens, or its most probable ones."""
    node = reference(spec, settings.reference_ema)
    if settings.teacher_top_k:
        node = Infer(name=REFERENCE_TOP, model=REFERENCE, output="top_logprobs", writes=(REFERENCE_TOP,))
    if not settings.teachers:
        return node
    return replace(node, model=REFERENCE, base=False, average=None, reads=(SEQUENCES, TEACHER))


def _source(settings: Distillation) -> Generate:
    """The student, or in a share of the prompts the dataset."""
    sampled = Generate(rounds=settings.dynamic_sampling)
    writes = (*sampled.writes, *((TEACHER,) if settings.teachers else ()))
    if not settings.given_share:
        return replace(sampled, writes=writes)
    return replace(sampled, given=settings.given_share, writes=(*writes, GIVEN))


def _rules(spec: CommonSpec, where: str, settings: Distillation) -> Iterator[Problem]:
    yield from (group_rules if _learns_scores(spec) else policy_gradient_rules)(spec, where, settings)
    yield from _teachers(spec, where, settings)
    if settings.reference_ema is not None:
        message = "puts the policy's moving average in the place of the teacher (spec.model.reference)"
        yield Problem(f"{where}.referenceEma", f"{message}; remove it; got {settings.reference_ema:g}")
    if settings.gamma and settings.kl_penalty != "reward":
        message = "discounts advantages, and with klIn loss or teacherTopK the teacher gives none"
        yield Problem(f"{where}.gamma", f"{message}; use 0; got {settings.gamma:g}")
    if settings.given_share:
        yield from _given(spec, where, settings)
    if not is_scored(spec):
        yield from _unscored(where, settings)


def _teachers(spec: CommonSpec, where: str, settings: Distillation) -> Iterator[Problem]:
    """Problems of the job's teachers, and of sources that name one."""
    names = [teacher.name for teacher in settings.teachers]
    if spec.model.reference is None and not names:
        yield Problem("spec.model.reference", "is required and missing: the teacher, a path or hub name")
    elif spec.model.reference is not None and names:
        message = f"teaches no row beside {where}.teachers: make it one of them, or remove it"
        yield Problem("spec.model.reference", f"{message}; got {spec.model.reference!r}")
    for number, name in enumerate(names):
        if name in names[:number]:
            message = "two teachers have this name; give this one another"
            yield Problem(f"{where}.teachers[{number}].name", f"{message}; got {name!r}")
    for number, source in enumerate(spec.data.sources or ()):
        if names and source.teacher is not None and source.teacher not in names:
            message = f"is no teacher of {where}.teachers, which has {', '.join(names)}"
            yield Problem(f"spec.data.sources[{number}].teacher", f"{message}; got {source.teacher!r}")


def _learns_scores(spec: CommonSpec) -> bool:
    """True if scores are part of the advantages; those of functions with weight 0 are measured alone."""
    by_model = any(model.weight for model in spec.reward_models)
    by_functions = any(function.weight for function in spec.reward.functions)
    return spec.environment is not None or by_model or by_functions


def _given(spec: CommonSpec, where: str, settings: Distillation) -> Iterator[Problem]:
    """Settings that responses which the student has not sampled rule out."""
    share, sampling, replay = settings.given_share, spec.sampling, spec.replay
    got = f"got {share:g}"
    if not settings.teacher_top_k:
        message = "an estimate from single tokens is of tokens that the student sampled; set teacherTopK"
        yield Problem(f"{where}.givenShare", f"{message}, or remove this; {got}")
    if _learns_scores(spec):
        message = (
            "given responses have no group to be compared with; give functions weight 0, and no reward model"
        )
        yield Problem(f"{where}.givenShare", f"{message} or environment; {got}")
    elif sampling.responses_per_prompt > 1:
        message = f"with {where}.givenShare each prompt has one response; use 1"
        yield Problem("spec.sampling.responsesPerPrompt", f"{message}; got {sampling.responses_per_prompt}")
    if spec.data.prompts_per_step * (1 - share) < 1:
        message = (
            f"leaves none of {spec.data.prompts_per_step} prompts to the student; use less, or more prompts"
        )
        yield Problem(f"{where}.givenShare", f"{message} a step; {got}")
    if spec.data.max_response_length > sampling.max_new_tokens:
        message = f"given responses are trained on beside sampled ones; use at most {sampling.max_new_tokens}"
        answers = f"{message} (sampling.maxNewTokens), or raise that; got {spec.data.max_response_length}"
        yield Problem("spec.data.maxResponseLength", answers)
    if replay.window or replay.dynamic:
        field = "maxReplayEpisode" if replay.window else "streamDataLoaderType"
        got_it = replay.max_replay_episode if replay.window else "dynamic"
        message = f"is for responses that were all sampled; remove it, or {where}.givenShare"
        yield Problem(f"spec.replay.{field}", f"{message}; got {got_it}")


def _unscored(where: str, settings: Distillation) -> Iterator[Problem]:
    reason = "changes or compares scores, and the job has no reward; remove it, or set spec.reward.functions"
    for field, value in (
        ("overlongBuffer", settings.overlong_buffer),
        ("dynamicSampling", settings.dynamic_sampling),
    ):
        if value:
            yield Problem(f"{where}.{field}", f"{reason}; got {value}")


ALGORITHM = Algorithm(
    name="distillation",
    settings=Distillation,
    graph=_graph,
    rules=_rules,
    usual={"sampling": {"responsesPerPrompt": 4}},  # Lu and Thinking Machines Lab's
)
