"""Table of the algorithms, one line each."""

from ..field_types import Frozen
from ..sections.common import CommonSpec
from ..sections.teacher import NamedTeacher
from . import (
    cispo,
    custom,
    distillation,
    dpo,
    dr_grpo,
    grpo,
    gspo,
    kto,
    online_dpo,
    ppo,
    process_reward,
    reinforce_pp,
    reward,
    rloo,
    sft,
)
from .base import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        sft.ALGORITHM,
        reward.ALGORITHM,
        process_reward.ALGORITHM,
        dpo.ALGORITHM,
        kto.ALGORITHM,
        ppo.ALGORITHM,
        grpo.ALGORITHM,
        dr_grpo.ALGORITHM,
        rloo.ALGORITHM,
        reinforce_pp.ALGORITHM,
        gspo.ALGORITHM,
        cispo.ALGORITHM,
        online_dpo.ALGORITHM,
        distillation.ALGORITHM,
    )
}
CUSTOM = custom.ALGORITHM


def algorithm_of(spec: CommonSpec) -> Algorithm:
    """The algorithm of a job; `CUSTOM` for an import path."""
    return CUSTOM if ":" in spec.algorithm else ALGORITHMS[spec.algorithm]


def settings_of(spec: CommonSpec) -> Frozen:
    """The settings section of the job's algorithm, such as `spec.ppo`; empty if it has none."""
    algorithm = algorithm_of(spec)
    section: Frozen = getattr(spec, algorithm.section) if algorithm.settings else Frozen()
    return section


def teacher_top_k(spec: CommonSpec) -> int:
    """Number of the reference's most probable tokens that `top_logprobs` is of; 0 if the algorithm has no use of it."""
    settings = settings_of(spec)
    return settings.teacher_top_k if isinstance(settings, distillation.Distillation) else 0


def teachers_of(spec: CommonSpec) -> tuple[NamedTeacher, ...]:
    """The teachers that rows name; empty if one teaches all rows, or none."""
    settings = settings_of(spec)
    return settings.teachers if isinstance(settings, distillation.Distillation) else ()


def teacher_kl(teacher: NamedTeacher) -> str:
    """The metric of a teacher's rows: the policy's mean divergence from it."""
    return f"teacher_{teacher.name}_kl_mean"


__all__ = [
    "ALGORITHMS",
    "CUSTOM",
    "Algorithm",
    "algorithm_of",
    "settings_of",
    "teacher_kl",
    "teacher_top_k",
    "teachers_of",
]
