"""`rlhf checkpoint`."""

import argparse
import datetime
import sys

from rich.text import Text

from rlhf_api.contract.report import CheckpointStatus
from rlhf_api.contract.status import JobStatus

from ..console.exits import Failure
from ..console.text import span
from ..job.names import CHECKPOINT
from .client import Session
from .format import state
from .jobs import find, is_finished, poll_job, status_of
from .terminal import LiveView, put


async def checkpoint(session: Session, options: argparse.Namespace) -> int:
    name = options.name
    before = status_of(await find(session, name))
    if before is not None and (is_finished(before) or before.phase == "Suspended"):
        raise Failure(f"{name} is {before.phase} and saves nothing now; {_newest(before)}")
    request = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    patched = await session.patch_job(name, {"metadata": {"annotations": {CHECKPOINT: request}}})
    earlier, status = _saved(status_of(patched)), before
    with LiveView(sys.stderr, spinner=True) as shown:
        async for body in poll_job(session, name, shown.print_line, options.timeout):
            status = status_of(body)
            made = _saved(status)
            if made is not None and made != earlier and _is_accepted(status, request):
                break
            if is_finished(status) or (status is not None and status.phase == "Suspended"):
                raise Failure(f"{name} has ended before it could save a checkpoint ({state(status)})")
            waiting = (
                "saves at the end of its step" if _is_accepted(status, request) else "has not been asked yet"
            )
            shown.show(Text(f"{name}  the trainer {waiting}"), f"{state(status)}; the trainer {waiting}")
        else:
            raise Failure(
                f"{name} has no new checkpoint after {span(options.timeout)}: {_missing_reason(status, request)}"
            )
    put(f"{name}: checkpoint of step {made.step} in {made.uri}", sys.stdout)
    return 0


def _saved(status: JobStatus | None) -> CheckpointStatus | None:
    return status.last_checkpoint if status else None


def _is_accepted(status: JobStatus | None, request: str) -> bool:
    """True if the trainer has accepted the request, or a later one; requests are times."""
    taken = status.cluster.checkpoint_requested if status and status.cluster else None
    return taken is not None and taken >= request


def _newest(status: JobStatus) -> str:
    saved = status.last_checkpoint
    return (
        f"its newest checkpoint is of step {saved.step}, in {saved.uri}" if saved else "it has no checkpoint"
    )


def _missing_reason(status: JobStatus | None, request: str) -> str:
    if _is_accepted(status, request):
        return "the trainer has been asked and saves at the end of its step; give it more time with --timeout"
    return f"the trainer has not been asked yet ({state(status)}); does the operator run, and the trainer answer?"
