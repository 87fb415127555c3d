"""Counts the processes of a role, and of each teacher; pure."""

from collections.abc import Mapping, Sequence

from rlhf_api.contract.run import replicas
from rlhf_api.contract.status import RoleStatus, TeacherStatus
from rlhf_api.contract.teachers import shares_of
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ..supervision.process_state import ProcessState


def role_status(
    spec: Spec, role: Role, processes: Sequence[ProcessState], restarts: Mapping[Role, int], *, over: bool
) -> RoleStatus:
    """Processes of the role, of which none is ready once the job is `over`; without a failure."""
    firsts = [s for s in processes if s.role is role and s.rank == 0]
    ready = [s.index for s in firsts if s.ready and not s.ended and not over]
    return RoleStatus(
        desired=replicas(spec, role),
        ready=len(ready),
        restarts=restarts.get(role, 0),
        teachers=_teachers(spec, ready) or None if role is Role.REFERENCE else None,
    )


def _teachers(spec: Spec, ready: Sequence[int]) -> tuple[TeacherStatus, ...]:
    """Of each teacher, where the job has any by name; `ready`: indices of the reference role's processes."""
    return tuple(
        TeacherStatus(
            name=share.teacher.name,
            first=share.processes.start,
            desired=len(share.processes),
            ready=sum(index in share.processes for index in ready),
        )
        for share in shares_of(spec)
    )


def ready_words(status: RoleStatus) -> str:
    """The ready ones of a role's processes, and the teachers that lack some."""
    lacking = [
        f"{each.name} {each.ready}/{each.desired}"
        for each in status.teachers or ()
        if each.ready < each.desired
    ]
    return f"{status.ready}/{status.desired}" + (f" ({', '.join(lacking)})" if lacking else "")
