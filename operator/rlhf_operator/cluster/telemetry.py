"""Prometheus metrics of the operator and of its jobs."""

from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from ..status.metrics import JobMetrics, Key, Status

Outcome = Literal["done", "refused", "error"]
"""`refused`: the job cannot have what it asks for."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Telemetry:
    """Prometheus metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leads = False
        ProcessCollector(registry=self.registry)
        self._jobs = JobMetrics()
        self.registry.register(self._jobs)
        self._reconciles = Histogram(
            "rlhf_operator_reconcile_seconds",
            "Time that one reconcile of a job took.",
            ["outcome"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        for outcome in get_args(Outcome):  # initialised, so that rates see the series before the first event
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
        """Records a reconcile."""
        self._reconciles.labels(outcome).observe(seconds)

    def api_call(self, verb: str, kind: str, code: int, seconds: float) -> None:
        """Records an API call; code 0 without a reply."""
        self._calls.labels(verb, kind, str(code)).inc()
        self._call_seconds.labels(verb).observe(seconds)

    def queue_depth(self, waiting: int) -> None:
        self._queue.set(waiting)

    def leading(self, on: bool) -> None:
        self.leads = on
        self._leading.set(on)

    def job(self, key: Key, status: Status | None) -> None:
        """Updates a job's series from its status; None: the job is gone, and so are its series."""
        self._jobs.put(key, status)
