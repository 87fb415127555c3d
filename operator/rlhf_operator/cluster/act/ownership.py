"""Tells the owner of an object that has the name of one of a job's objects: the job, an earlier job of the same name,
or somebody else. Another one's is left alone, also an earlier job's: the garbage collector deletes that by its uid,
whoever owns it by then."""

from collections.abc import Mapping
from typing import Any

from ...job.names import JOB, MANAGED_BY, OPERATOR
from ...job.snapshot import Job
from ...kube.api import Api
from ...kube.api_error import ApiError
from ...kube.kinds import kind_of

Body = Mapping[str, Any]


def owned_by(body: Body, job: Job) -> bool:
    """True for an object of this job, not of an earlier one of its name."""
    return any(owner.get("uid") == job.uid for owner in body["metadata"].get("ownerReferences", ()))


def is_own(body: Body, job: Job) -> bool:
    """True for an object of this job, also if somebody has removed its owner reference or its labels."""
    return owned_by(body, job) or _lost_owner(body, job)


def name_taken(body: Body, job: Job) -> ApiError:
    """The refusal to touch an object that is not the job's."""
    kind, name = body["kind"], body["metadata"]["name"]
    if _of_earlier(body, job):
        message = f"{kind} {name} of an earlier job of this name has not gone yet"
    else:
        message = (
            f"{kind} {name} exists already and is not this job's: delete it, or give the job another name"
        )
    return ApiError(409, "AlreadyExists", message, kind=kind)


async def check_name(api: Api, job: Job, body: Body) -> None:
    """Raises ApiError if the name of an object that the job is to have belongs to one that is not its own."""
    try:
        existing = await api.get(kind_of(body), job.namespace, body["metadata"]["name"])
    except ApiError as error:
        if error.status != 404:
            raise
        return
    if not is_own(existing, job):
        raise name_taken(existing, job)


def _lost_owner(body: Body, job: Job) -> bool:
    labels = body["metadata"].get("labels") or {}
    return _controller(body) is None and labels.get(MANAGED_BY) == OPERATOR and labels.get(JOB) == job.name


def _of_earlier(body: Body, job: Job) -> bool:
    owner = _controller(body) or {}
    return (owner.get("kind"), owner.get("name")) == (job.body["kind"], job.name)


def _controller(body: Body) -> Body | None:
    owners = body["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), None)
