"""Prometheus metrics of jobs, from their status: the same names on a cluster and on one machine."""

import asyncio
import datetime
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rlhf_api.roles import Role

Key = tuple[str, str]
"""Namespace and name of a job."""
Status = Mapping[str, Any]
"""`status` of an RLHFJob as JSON; on a cluster its content is not trusted."""


def metrics_route(registry: CollectorRegistry) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Serves a scrape, in the format that the client accepts."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # In a thread: a thousand jobs make a megabyte of text, and reconciles continue meanwhile.
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    return metrics


class JobMetrics(Collector):
    """Series of jobs, created on demand. Their labels are namespace and name, so their number grows only with the
    number of jobs."""

    def __init__(self) -> None:
        self._phases: dict[Key, str] = {}
        self._values: dict[Key, dict[str, float]] = {}

    def put(self, key: Key, status: Status | None) -> None:
        """Updates a job's series from its status; None: the job is gone, and so are its series."""
        self._phases.pop(key, None)
        self._values.pop(key, None)
        if status is None:
            return
        if isinstance(phase := status.get("phase"), str):
            self._phases[key] = phase
        values = {name: read(status) for name, (_, read) in _JOB_METRICS.items()}
        self._values[key] = {name: value for name, value in values.items() if value is not None}

    def collect(self) -> Iterator[Metric]:
        # Copied: /metrics is rendered in a thread, while jobs come and go.
        phases, jobs = list(self._phases.items()), list(self._values.items())
        phase = GaugeMetricFamily(
            "rlhf_job_phase", "1 for the phase that the job is in.", labels=["namespace", "rlhfjob", "phase"]
        )
        for key, name in phases:
            phase.add_metric([*key, name], 1)
        yield phase
        for metric, (meaning, _) in _JOB_METRICS.items():
            family = CounterMetricFamily if metric.endswith("_total") else GaugeMetricFamily
            series = family(metric, meaning, labels=["namespace", "rlhfjob"])
            for key, values in jobs:
                if metric in values:
                    series.add_metric(key, values[metric])
            yield series


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _field(*path: str) -> Callable[[Status], float | None]:
    def read(status: Status) -> float | None:
        value: Any = status
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return _number(value)

    return read


def _learned(name: str, *roles: Role) -> Callable[[Status], float | None]:
    """Getter of a metric that a job with all these roles has after its first step; NaN if it is missing then, so that
    alerts see it.
    """

    def read(status: Status) -> float | None:
        value = _field(name)(status)
        if value is not None or any(_field("roles", role, "desired")(status) is None for role in roles):
            return value
        return math.nan if _field("step")(status) else None

    return read


def _gpu_hours(status: Status) -> float | None:
    seconds = _field("gpuSeconds")(status)
    return None if seconds is None else seconds / 3600


def _checkpoint_time(status: Status) -> float | None:
    checkpoint = status.get("lastCheckpoint")
    text = checkpoint.get("time") if isinstance(checkpoint, Mapping) else None
    try:
        return datetime.datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except ValueError:
        return None


_JOB_METRICS: dict[str, tuple[str, Callable[[Status], float | None]]] = {
    "rlhf_job_step": ("Training steps done.", _field("step")),
    "rlhf_job_total_steps": ("Training steps of the whole run.", _field("totalSteps")),
    "rlhf_job_reward": (
        "Mean reward of the last step; NaN where it is missing.",
        _learned("reward", Role.REWARD),
    ),
    "rlhf_job_kl": (
        "Mean KL to the reference, nats a token; NaN where it is missing.",
        _learned("kl", Role.REWARD, Role.REFERENCE),
    ),
    "rlhf_job_loss": ("Loss of the last step.", _field("loss")),
    "rlhf_job_tokens_per_second": ("Tokens trained on in a second.", _field("tokensPerSecond")),
    "rlhf_job_weight_version": (
        "Version of the weights that the trainer sent last.",
        _field("weightVersion"),
    ),
    "rlhf_job_staleness": ("Weight versions between sampling and training, a mean.", _field("staleness")),
    "rlhf_job_staleness_max": (
        "Weight versions between sampling and training of the oldest token of the last step.",
        _field("stalenessMax"),
    ),
    "rlhf_job_staleness_bound": (
        "The job's rollout.maxStaleness.",
        _field("stalenessBound"),
    ),
    "rlhf_job_trainer_idle": (
        "Share of the last step in which the trainer waited for responses.",
        _field("trainerIdle"),
    ),
    "rlhf_job_generator_idle": (
        "Share of the last step in which no generator had a request.",
        _field("generatorIdle"),
    ),
    "rlhf_job_responses_continued": (
        "Responses of the last step that were interrupted and that another request went on with.",
        _field("responsesContinued"),
    ),
    "rlhf_job_importance_effective": (
        "Effective sample size of the last step's importance weights, as a share of its tokens.",
        _field("importanceEffective"),
    ),
    "rlhf_job_generators_desired": (
        "Generators that the job asks for.",
        _field("roles", "generator", "desired"),
    ),
    "rlhf_job_generators_ready": ("Generators that serve.", _field("roles", "generator", "ready")),
    "rlhf_job_gpus": ("GPUs of the job's pods that have a node.", _field("gpus")),
    "rlhf_job_gpu_hours_total": ("GPU-hours that the job has used.", _gpu_hours),
    "rlhf_job_cost_total": ("Cost of these GPU-hours, by the prices that the operator has.", _field("cost")),
    "rlhf_job_restarts_total": (
        "Starts that count against a backoff limit, of all roles.",
        _field("restarts"),
    ),
    "rlhf_job_last_checkpoint_step": ("Step of the newest checkpoint.", _field("lastCheckpoint", "step")),
    "rlhf_job_last_checkpoint_timestamp_seconds": ("When the newest checkpoint was made.", _checkpoint_time),
}
