"""`rlhf submit`."""

import argparse
import sys
from typing import Any

from pydantic import BaseModel

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.resources import lacks_gpus
from rlhf_api.job import RLHFJob
from rlhf_api.rules.pods.placement import cluster_problems

from ..console.exits import Failure, Misuse
from ..kube.api import Body
from ..kube.api_error import ApiError
from ..local.preflight.files import plain_secrets
from ..status.condition import refused
from .client import Session
from .jobs import check_served, is_finished, status_of
from .terminal import put


async def submit(session: Session, options: argparse.Namespace) -> int:
    """Submits the job; `options.job` is the validated manifest."""
    job: RLHFJob = options.job
    name, namespace = job.metadata.name, job.metadata.namespace or session.namespace
    if options.namespace and namespace != options.namespace:
        raise Misuse(
            f"{options.file} is for namespace {namespace}, and -n says {options.namespace}; leave one out"
        )
    for line in filter(None, (*plain_secrets(job.spec), lacks_gpus(job.spec))):
        put(line, sys.stderr)
    before = await _stored(session, namespace, name)
    try:
        after = await session.submit(as_written(job, namespace), force=options.force_conflicts)
    except ApiError as error:
        message = " ".join(error.message.partition(": ")[2].split())
        if error.status == 409:
            raise Failure(f"{name}: {message}; take these fields over with --force-conflicts") from None
        if error.status == 422 and '"null"' in message and before is not None:
            raise Failure(
                f"{name}: {message}; servers as old as 1.20 cannot take the last field of a section away: set that "
                "field to its default instead of leaving it out"
            ) from None
        if error.status == 404:
            await check_served(session)
        raise
    put(f"{namespace}/{name} {_what(before, after)}", sys.stdout)
    elsewhere = options.namespace or namespace != session.namespace
    put(_next(before, options.program, name, f" -n {namespace}" if elsewhere else ""), sys.stdout)
    return 0


def as_written(job: RLHFJob, namespace: str) -> Body:
    """The object to apply, with only the manifest's own fields: others stay as the cluster has them. Raises InvalidJob
    for what runs only on one machine."""
    if refused := [*cluster_problems(job.spec)]:
        raise InvalidJob(refused)
    body: Body = _explicit_fields(job)
    return {**body, "metadata": {**body["metadata"], "namespace": namespace}}


def _explicit_fields(value: Any) -> Any:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {
            fields[name].alias or name: _explicit_fields(getattr(value, name))
            for name in fields
            # a null that is the default has no effect, and an API server may refuse it
            if name in value.model_fields_set
            and not (getattr(value, name) is None and fields[name].default is None)
        }
    if isinstance(value, tuple | list):
        return [_explicit_fields(item) for item in value]
    return value


async def _stored(session: Session, namespace: str, name: str) -> Body | None:
    try:
        return await session.get("RLHFJob", namespace, name)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _what(before: Body | None, after: Body) -> str:
    if before is None:
        return "created"
    same = before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    return "unchanged" if same else "changed"


def _next(before: Body | None, program: str, name: str, where: str) -> str:
    status = status_of(before) if before else None
    if status is not None and is_finished(status) and not refused(status):
        return f"it has {status.phase.lower()} already and is not run again; delete it first, or take another name"
    return (
        f"follow it with `{program} status {name} --watch{where}`, its trainer with "
        f"`{program} logs {name} -f{where}`"
    )
