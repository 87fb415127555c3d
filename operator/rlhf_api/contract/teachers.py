"""Teachers of a job: the processes of the reference role that hold each, and the job as these see it; pure."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ..algorithms import settings_of, teachers_of
from ..roles import Role
from ..sections.pods import combine
from ..sections.teacher import NamedTeacher
from ..spec import Spec


@dataclass(frozen=True)
class Share:
    """One teacher's part of the reference role."""

    teacher: NamedTeacher
    where: str
    """Its field of the manifest."""
    processes: range
    """Indices of its processes."""
    spec: Spec
    """The job with this teacher alone, as the model of the reference role."""


def shares_of(spec: Spec) -> list[Share]:
    """Each teacher's part, in the order of the manifest; empty in a job without teachers by name."""
    shares, first = list[Share](), 0
    for teacher in teachers_of(spec):
        count = teacher.replicas or spec.reference.replicas
        processes = range(first, first + count)
        shares.append(Share(teacher, teacher_field(teacher), processes, _alone(spec, teacher)))
        first += count
    return shares


def views_of(spec: Spec, role: Role) -> list[Spec]:
    """The job as the processes of a role see it: one for each model of a role that has several."""
    return [share.spec for share in _shares(spec, role)] or [spec]


def view_of(spec: Spec, role: Role, index: int) -> Spec:
    """The job as one process of a role sees it."""
    return next((share.spec for share in _shares(spec, role) if index in share.processes), spec)


def alike(spec: Spec, role: Role, index: int, others: Collection[int]) -> list[int]:
    """Those of `others`, indices of the role's processes, that hold the same model as this one."""
    shares = _shares(spec, role)
    processes = next((share.processes for share in shares if index in share.processes), None)
    return [other for other in others if processes is None or other in processes]


def model_field(spec: Spec, name: str) -> str:
    """The manifest's field of a model of `spec.model`, also of a job with one teacher alone."""
    teachers = teachers_of(spec) if name == Role.REFERENCE.row.model else ()
    return f"{teacher_field(teachers[0])}.model" if len(teachers) == 1 else f"spec.model.{name}"


def role_field(spec: Spec, role: Role) -> str:
    """The manifest's field of a role's settings, also of a job with one teacher alone."""
    teachers = teachers_of(spec) if role is Role.REFERENCE else ()
    return teacher_field(teachers[0]) if len(teachers) == 1 else f"spec.{role.value}"


def named_models(spec: Spec, fields: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(field of `spec.model`, field of the manifest, path or hub name) of each model that the manifest names; those of
    all teachers as references, and those of `spec.reward.models` as reward models."""
    for field in fields:
        for view in views_of(spec, Role.REFERENCE) if field == Role.REFERENCE.row.model else [spec]:
            name: str | None = getattr(view.model, field)
            if name is not None:
                yield field, model_field(view, field), name
        if field == Role.REWARD.row.model:
            for i, each in enumerate(spec.reward.models):
                yield field, f"spec.reward.models[{i}].model", each.model


def teacher_field(teacher: NamedTeacher) -> str:
    """The teacher's field of the manifest."""
    return f"spec.distillation.teachers[{teacher.name}]"


def _shares(spec: Spec, role: Role) -> list[Share]:
    return shares_of(spec) if role is Role.REFERENCE else []


def _alone(spec: Spec, teacher: NamedTeacher) -> Spec:
    own = {
        "replicas": teacher.replicas,
        "dtype": teacher.dtype,
        "micro_batch_tokens": teacher.micro_batch_tokens,
        "engine": teacher.engine,
        "tensor_parallel_size": teacher.tensor_parallel_size,
        "engine_arguments": teacher.engine_arguments,
    }
    given = {name: value for name, value in own.items() if value is not None}
    reference = {**given, "pods": combine(spec.reference.pods, teacher.pods)}
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"reference": teacher.model}),
            "reference": spec.reference.model_copy(update=reference),
            "distillation": settings_of(spec).model_copy(update={"teachers": (teacher,)}),
        }
    )
