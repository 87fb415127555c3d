"""Finds and follows a job."""

import asyncio
import difflib
import time
from collections.abc import AsyncIterator, Callable

from rlhf_api.contract.status import ENDED, JobStatus

from ..console.exits import Failure
from ..job.snapshot import Job
from ..kube.api import Body
from ..kube.api_error import ApiError
from .client import Session, passing

POLL_SECONDS = 1.0
_OUTAGE_SECONDS = 300.0
"""Longest outage of the API server tolerated while following a job, seconds."""
_LISTED = 10

Say = Callable[[str], None]


async def find(session: Session, name: str) -> Body:
    """The job as stored. Raises Failure if there is none, with similar names."""
    try:
        return await session.get("RLHFJob", session.namespace, name)
    except ApiError as error:
        if error.status != 404:
            raise
    await check_served(session)
    names = sorted(
        [
            body["metadata"]["name"]
            async for body in session.list("RLHFJob", session.namespace, metadata_only=True)
        ]
    )
    raise Failure(f"there is no job {name!r} in namespace {session.namespace}; {_hint(name, names)}")


async def check_served(session: Session) -> None:
    """Raises Failure if the cluster does not serve RLHFJobs."""
    if not await session.serves("RLHFJob"):
        raise Failure(
            f"{session.cluster} does not know RLHFJob (rlhf.dev/v1alpha1): install the operator, by "
            "`helm install rlhf charts/rlhf-operator -n rlhf-system --create-namespace`"
        )


async def poll_job(
    session: Session, name: str, say: Say, seconds: float | None = None
) -> AsyncIterator[Body]:
    """Yields the job about once a second, for `seconds` or until the user interrupts.

    Outages of the API server are reported by `say`. Raises Failure once the job is gone.
    """
    started = answered = time.monotonic()
    away = False
    while seconds is None or time.monotonic() < started + seconds:
        try:
            body = await session.get("RLHFJob", session.namespace, name)
        except ApiError as error:
            if error.status == 404:
                raise Failure(f"{name} was deleted") from None
            if not passing(error) or time.monotonic() > answered + _OUTAGE_SECONDS:
                raise
            if not away:
                say(f"{session.cluster} does not answer; trying again for {_OUTAGE_SECONDS / 60:g} minutes")
            away = True
        else:
            if away:
                say("it answers again")
            away, answered = False, time.monotonic()
            yield body
        await asyncio.sleep(POLL_SECONDS)


def status_of(body: Body) -> JobStatus | None:
    """Parsed status; None before an operator has seen the job. Raises Failure for a status of another version."""
    status = Job.of(body).status
    if status is None and body.get("status"):
        name = body["metadata"]["name"]
        raise Failure(
            f"{name}: its status was written by another version of the operator than this program; use the program of "
            f"that version, or `kubectl get rlhfjob {name} -o yaml`"
        )
    return status


def is_finished(status: JobStatus | None) -> bool:
    """True if the job has ended."""
    return status is not None and status.phase in ENDED


def _hint(name: str, names: list[str]) -> str:
    if not names:
        return "there is none at all; is it in another namespace (-n)?"
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"there are: {', '.join(names[:_LISTED])}{more}"
