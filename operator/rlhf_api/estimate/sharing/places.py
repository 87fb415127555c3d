"""Assigns a machine's GPUs to processes that share them; pure.

Trainer ranks and generators both begin at the first GPU, so that each GPU has a rank and an engine, or a part of one.
Frozen models follow behind the generators, round and round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...contract.run import places, roles_of
from ...contract.teachers import role_field, view_of, views_of
from ...errors.problem import Problem
from ...roles import Role
from ...spec import Spec
from ..resources import gpus_each
from ..serving import on_vllm
from ..sizes import NOTHING, Sizes

Place = tuple[Role, int, int]
"""Role, replica, and rank within it."""


@dataclass(frozen=True)
class Shared:
    """The processes on one GPU."""

    trainer: bool
    generator: bool
    frozen: tuple[Role, ...]
    """The role of each frozen model."""


def separate_roles(spec: Spec) -> list[Role]:
    """Roles whose processes need GPUs of their own unless the job shares them: vLLM takes most of one at its start."""
    return [role for role in roles_of(spec) if role.row.work == "train" or _on_vllm(spec, role)]


def _on_vllm(spec: Spec, role: Role) -> bool:
    """True if any of the role's processes is."""
    return any(on_vllm(view, role) for view in views_of(spec, role))


def separate_gpus(spec: Spec) -> int:
    """GPUs that a job needs which shares none."""
    views = [(role, view) for role in separate_roles(spec) for view in views_of(spec, role)]
    return sum(len(places(view, role)) * gpus_each(view, role)[0] for role, view in views)


def count_problems(spec: Spec, count: int) -> Iterator[Problem]:
    """Problems of a job whose processes share `count` GPUs; a process has each of its GPUs once. 0: on CPUs."""
    if spec.generator.pods_per_replica > 1 and Role.GENERATOR in roles_of(spec):
        message = "a generator that shares GPUs is one process; use 1"
        yield Problem("spec.generator.podsPerReplica", f"{message}; got {spec.generator.pods_per_replica}")
    views = [(role, view) for role in separate_roles(spec) for view in views_of(spec, role)]
    for role, view in views if count else ():
        size, words = gpus_each(view, role)
        number = len(places(view, role)) if role in (Role.TRAINER, Role.GENERATOR) else 1
        if size * number > count:
            there = f"{count} {'is' if count == 1 else 'are'} there to share"
            each = f"{number} processes of {size} ({words})" if number > 1 else words
            yield Problem(
                role_field(view, role), f"needs {size * number} GPUs, and {there}: {each}; use fewer"
            )


def shared_places(spec: Spec, count: int) -> dict[Place, tuple[int, ...]]:
    """The GPUs of each process, as positions in a list of `count`. A process without a model, such as one of reward
    functions, has the first."""
    models = Sizes.of(spec, NOTHING).frozen
    taken: dict[Place, tuple[int, ...]] = {}
    frozen = len(places(spec, Role.GENERATOR)) * _size(spec, Role.GENERATOR)
    begin = {Role.TRAINER: 0, Role.GENERATOR: 0}
    for role in sorted(roles_of(spec), key=lambda role: not _on_vllm(spec, role)):
        if role not in begin and role not in models:
            taken |= {(role, i, rank): (0,) for i, rank in places(spec, role)}
            continue
        first = begin.get(role, frozen)
        for i, rank in places(spec, role):
            size = _size(view_of(spec, role, i), role)
            taken[role, i, rank] = tuple((first + k) % count for k in range(size))
            first += size
        if role not in begin:
            frozen = first
    return taken


def occupants(spec: Spec, count: int) -> Sequence[Shared]:
    """The processes on each of `count` GPUs."""
    models, taken = Sizes.of(spec, NOTHING).frozen, shared_places(spec, count)

    def on(gpu: int, role: Role) -> list[Role]:
        return [role for place, mine in taken.items() if place[0] is role for at in mine if at == gpu]

    return [
        Shared(
            trainer=bool(on(gpu, Role.TRAINER)),
            generator=bool(on(gpu, Role.GENERATOR)),
            frozen=tuple(one for role in models if role in roles_of(spec) for one in on(gpu, role)),
        )
        for gpu in range(count)
    ]


def _size(spec: Spec, role: Role) -> int:
    return gpus_each(spec, role)[0] if role in roles_of(spec) else 0
