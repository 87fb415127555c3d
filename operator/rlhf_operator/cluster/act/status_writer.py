"""Writes a job's status if the change is worth a write, and only over the version that was read; a status that the API
server refuses is kept in memory, and the job goes on with it."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlhf_api.contract.status import JobStatus
from rlhf_api.roles import Role

from ...job.snapshot import Job
from ...kube.api import Api, Key
from ...kube.api_error import ApiError
from ...status.condition import own_conditions
from ..decide.describe import Event
from ..telemetry import Telemetry
from ..watching.cache import Cache
from .recorder import Recorder

_VOLATILE = {
    *("activity", "estimatedEnd", "generators", "ledger", "queue", "tokensPerSecond", "unscored"),
    *("cost", "gpuSeconds", "usageTime"),
}
"""Fields that change within a step, and on which no decision depends."""
_FIELDS = {field.alias for field in JobStatus.model_fields.values() if field.alias}
_REFRESH_SECONDS = 30.0


def is_worth_writing(before: Mapping[str, Any], now: Mapping[str, Any], age: float) -> bool:
    """Rate limit of status writes; `before` was stored `age` seconds ago. True at once if anything but the metrics of a
    step in progress has changed, else every 30 s. Fields that another controller wrote are no change."""
    stored = {**before, "conditions": own_conditions(before), "roles": _lasting(before)}
    current = {**now, "roles": _lasting(now)}
    changed = {key for key in _FIELDS if stored.get(key) != current.get(key)}
    return bool(changed - _VOLATILE) or bool(changed and age >= _REFRESH_SECONDS)


def _lasting(status: Mapping[str, Any]) -> dict[str, Any]:
    """The roles without the number of sandboxes that are ready, which changes with each episode."""
    return {
        role: {name: value for name, value in each.items() if (role, name) != (Role.SANDBOX, "ready")}
        for role, each in (status.get("roles") or {}).items()
    }


class StatusWriter:
    """Applies statuses, and shows them to telemetry."""

    def __init__(self, api: Api, cache: Cache, recorder: Recorder, telemetry: Telemetry) -> None:
        self._api, self._cache, self._recorder, self._telemetry = api, cache, recorder, telemetry
        self._written: dict[Key, float] = {}
        """Time of the last write, or refusal of one, on the monotonic clock."""
        self._refused: dict[Key, JobStatus] = {}
        """Newest statuses of jobs whose last write was refused."""
        self._dropped: dict[Key, dict[str, Any]] = {}
        """Fields as last written that were stored otherwise: the definition lacks them, or parts of them."""

    def latest(self, key: Key, job: Job) -> Job:
        """The job with its newest status, which the API server may not have stored."""
        status = self._refused.get(key)
        return job if status is None else replace(job, status=status)

    async def write(self, key: Key, job: Job, status: JobStatus) -> str:
        """Applies the status if it is worth a write; returns the job's resourceVersion afterwards. A status that the
        definition does not allow (422) is reported once and tried again every 30 s: another version of the definition
        may be installed."""
        version: str = job.body["metadata"]["resourceVersion"]
        content = json.loads(status.model_dump_json(by_alias=True, exclude_none=True))
        self._telemetry.job(key, content)
        age = time.monotonic() - self._written.get(key, float("-inf"))
        if key in self._refused:
            self._refused[key] = status
            if age < _REFRESH_SECONDS:
                return version
        elif not is_worth_writing((job.body.get("status") or {}) | self._dropped.get(key, {}), content, age):
            return version
        body = {
            "apiVersion": job.body["apiVersion"],
            "kind": job.body["kind"],
            "metadata": {
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
                # Refused where somebody wrote after we looked: this process may lead no longer.
                "resourceVersion": version,
            },
            "status": content,
        }
        try:
            stored = await self._api.apply_status(body)
        except ApiError as error:
            if error.status != 422:
                raise
            self._written[key] = time.monotonic()
            if key not in self._refused:
                self._refused[key] = status
                await self._recorder.record(job.body, Event("Warning", "StatusRefused", _refusal(error)))
            return version
        self._cache.put(stored)
        self._written[key] = time.monotonic()
        self._refused.pop(key, None)
        stored_status = stored.get("status", {})
        stored_status = {**stored_status, "conditions": own_conditions(stored_status)}
        self._dropped[key] = {
            field: content.get(field) for field in _FIELDS if content.get(field) != stored_status.get(field)
        }
        return str(stored["metadata"]["resourceVersion"])

    def forget(self, key: Key) -> None:
        self._telemetry.job(key, None)
        self._written.pop(key, None)
        self._refused.pop(key, None)
        self._dropped.pop(key, None)


def _refusal(error: ApiError) -> str:
    problem = (
        "the definition of RLHFJob that is installed does not allow this job's status, which is not stored"
    )
    return f"{problem}; the job goes on: {error.message}"
