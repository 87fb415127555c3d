"""Prometheus metrics of the operator and of its jobs."""

import datetime
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Key = tuple[str, str]
"""Namespace and name of a job."""
Status = Mapping[str, Any]
"""`status` of an RLHFJob as the API server has it: somebody may have written anything there."""
Outcome = Literal["done", "error"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Telemetry:
    """Prometheus metrics. The labels of a job are its namespace and name, so series grow with jobs alone."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._jobs = _Jobs()
        self.registry.register(self._jobs)
        self._reconciles = Histogram(
            "rlhf_operator_reconcile_seconds",
            "Time that one reconcile of a job took.",
            ["outcome"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        for outcome in ("done", "error"):  # a rate needs to see the series before its first event
            self._reconciles.labels(outcome)
        self._calls = Counter(
            "rlhf_operator_api_calls",
            "Calls of the Kubernetes API; code 0: no answer came.",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self._call_seconds = Histogram(
            "rlhf_operator_api_call_seconds",
            "Time that one call of the Kubernetes API took.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._queue = Gauge(
            "rlhf_operator_queue_depth", "Jobs that wait for a reconcile.", registry=self.registry
        )
        self._leading = Gauge(
            "rlhf_operator_leading",
            "1 where this replica leads, 0 where it stands by.",
            registry=self.registry,
        )

    def reconciled(self, seconds: float, outcome: Outcome) -> None:
        """A reconcile ended."""
        self._reconciles.labels(outcome).observe(seconds)

    def api_call(self, verb: str, kind: str, code: int, seconds: float) -> None:
        """A call of the API server ended; code 0 where no answer came."""
        self._calls.labels(verb, kind, str(code)).inc()
        self._call_seconds.labels(verb).observe(seconds)

    def queue_depth(self, waiting: int) -> None:
        self._queue.set(waiting)

    def leading(self, on: bool) -> None:
        self._leading.set(on)

    def job(self, key: Key, status: Status | None) -> None:
        """Takes a job's status; None: the job is gone, and so are its series."""
        self._jobs.put(key, status)


class _Jobs(Collector):
    """The series of jobs, made when they are asked for."""

    def __init__(self) -> None:
        self._phases: dict[Key, str] = {}
        self._values: dict[Key, dict[str, float]] = {}

    def put(self, key: Key, status: Status | None) -> None:
        self._phases.pop(key, None)
        self._values.pop(key, None)
        if status is None:
            return
        if isinstance(phase := status.get("phase"), str):
            self._phases[key] = phase
        values = {name: read(status) for name, (_, read) in _JOB_METRICS.items()}
        self._values[key] = {name: value for name, value in values.items() if value is not None}

    def collect(self) -> Iterator[Metric]:
        # Copies: /metrics is written in a thread, while jobs come and go.
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


def _learned(name: str) -> Callable[[Status], float | None]:
    """A figure that a job with a reward has after its first step; NaN where it lacks it then: alerts see that."""

    def read(status: Status) -> float | None:
        value = _field(name)(status)
        if value is not None or _field("roles", "reward", "desired")(status) is None:
            return value
        return math.nan if _field("step")(status) else None

    return read


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
    "rlhf_job_reward": ("Mean reward of the last step; NaN where it is missing.", _learned("reward")),
    "rlhf_job_kl": ("Mean KL to the reference, nats a token; NaN where it is missing.", _learned("kl")),
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
    "rlhf_job_trainer_idle": (
        "Share of the last step in which the trainer waited for responses.",
        _field("trainerIdle"),
    ),
    "rlhf_job_generator_idle": (
        "Share of the last step in which no generator had a request.",
        _field("generatorIdle"),
    ),
    "rlhf_job_generators_desired": (
        "Generators that the job asks for.",
        _field("roles", "generator", "desired"),
    ),
    "rlhf_job_generators_ready": ("Generators that serve.", _field("roles", "generator", "ready")),
    "rlhf_job_gpus": ("GPUs of the job's pods that have a node.", _field("gpus")),
    "rlhf_job_restarts_total": (
        "Starts that count against a backoff limit, of all roles.",
        _field("restarts"),
    ),
    "rlhf_job_last_checkpoint_step": ("Step of the newest checkpoint.", _field("lastCheckpoint", "step")),
    "rlhf_job_last_checkpoint_timestamp_seconds": ("When the newest checkpoint was made.", _checkpoint_time),
}
