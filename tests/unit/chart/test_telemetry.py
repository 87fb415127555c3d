"""/metrics, /healthz and /readyz of the operator."""

import asyncio
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.kubernetes.helm import render, the
from tests.support.ports import free_port
from tests.unit.chart.running import JOB, KEY, RUNNING, samples

from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.serve import probes
from rlhf_operator.cluster.serve.metrics_access import Review
from rlhf_operator.cluster.telemetry import Telemetry
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.local.resources.ports import HOST


def test_a_job_has_a_series_for_each_figure_and_its_phase():
    telemetry = Telemetry()
    telemetry.job(KEY, {**RUNNING, "phase": "Provisioning"})
    telemetry.job(KEY, RUNNING)
    assert samples(telemetry) == {
        ("rlhf_job_phase", "Running"): 1,
        ("rlhf_job_step",): 3,
        ("rlhf_job_total_steps",): 40,
        ("rlhf_job_reward",): 0.5,
        ("rlhf_job_kl",): 0.01,
        ("rlhf_job_loss",): 1.5,
        ("rlhf_job_tokens_per_second",): 1200,
        ("rlhf_job_weight_version",): 3,
        ("rlhf_job_staleness",): 0.25,
        ("rlhf_job_staleness_max",): 1,
        ("rlhf_job_staleness_bound",): 2,
        ("rlhf_job_trainer_idle",): 0.2,
        ("rlhf_job_generator_idle",): 0.1,
        ("rlhf_job_responses_continued",): 7,
        ("rlhf_job_importance_effective",): 0.75,
        ("rlhf_job_generators_desired",): 2,
        ("rlhf_job_generators_ready",): 1,
        ("rlhf_job_gpus",): 12,
        ("rlhf_job_gpu_hours_total",): 100.5,
        ("rlhf_job_cost_total",): 251.25,
        ("rlhf_job_restarts_total",): 2,
        ("rlhf_job_last_checkpoint_step",): 2,
        ("rlhf_job_last_checkpoint_timestamp_seconds",): 1767225600,
    }
    labels = [s.labels for f in telemetry.registry.collect() for s in f.samples if s.name == "rlhf_job_step"]
    assert labels == [JOB]


def test_a_job_that_is_gone_leaves_no_series():
    telemetry = Telemetry()
    telemetry.job(KEY, RUNNING)
    telemetry.job(KEY, None)
    telemetry.job(("team", "never-seen"), None)
    assert samples(telemetry) == {}


def test_a_reward_that_should_be_there_is_nan_and_one_that_should_not_is_absent():
    telemetry = Telemetry()
    compared = {**RUNNING, "roles": {**RUNNING["roles"], "reference": {"desired": 1}}}
    telemetry.job(KEY, {**compared, "reward": None, "kl": None})
    assert math.isnan(samples(telemetry)["rlhf_job_reward",])
    assert math.isnan(samples(telemetry)["rlhf_job_kl",])
    telemetry.job(KEY, {**RUNNING, "kl": None})  # of klCoefficient 0, which has no reference
    assert ("rlhf_job_kl",) not in samples(telemetry)
    telemetry.job(KEY, {**compared, "roles": {"reference": {"desired": 1}}, "kl": None})  # of dpo
    assert ("rlhf_job_kl",) not in samples(telemetry)
    telemetry.job(KEY, {**RUNNING, "reward": None, "step": 0})
    assert ("rlhf_job_reward",) not in samples(telemetry)
    telemetry.job(KEY, {**RUNNING, "reward": None, "roles": {"trainer": {"desired": 1}}})
    assert ("rlhf_job_reward",) not in samples(telemetry)


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": 3, "step": "many", "roles": [], "lastCheckpoint": "yesterday", "restarts": True},
        {"roles": {"generator": None, "reward": 1}, "lastCheckpoint": {"time": "yesterday", "step": []}},
    ],
)
def test_a_status_that_somebody_else_wrote_does_no_harm(status):
    telemetry = Telemetry()
    telemetry.job(KEY, status)
    assert samples(telemetry) == {}


def test_the_operators_own_work_is_counted():
    telemetry = Telemetry()
    telemetry.reconciled(0.02, "done")
    telemetry.reconciled(3.0, "error")
    telemetry.api_call("create", "Pod", 201, 0.01)
    telemetry.api_call("create", "Pod", 0, 10.0)
    telemetry.queue_depth(7)
    telemetry.leading(True)
    values = samples(telemetry, "rlhf_operator_")
    assert values["rlhf_operator_reconcile_seconds_count", "error"] == 1
    assert values["rlhf_operator_reconcile_seconds_sum", "done"] == 0.02
    assert values["rlhf_operator_api_calls_total", "create", "Pod", "0"] == 1
    assert values["rlhf_operator_api_call_seconds_count", "create"] == 2
    assert values["rlhf_operator_queue_depth",] == 7
    assert values["rlhf_operator_leading",] == 1


def test_errors_have_a_series_before_the_first_one():
    """A rate sees no rise where the series begins with it."""
    assert samples(Telemetry(), "rlhf_operator_")["rlhf_operator_reconcile_seconds_count", "error"] == 0


async def nobody(body: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError(f"no {body['kind']} is needed")


@asynccontextmanager
async def served(
    telemetry: Telemetry, *, ready: bool = True, alive: bool = True, review: Review | None = None
) -> AsyncIterator[str]:
    """The address of an operator's server."""
    port = free_port()
    settings = Settings(trainer_image="t", token_key=b"k", metrics_port=port)
    settings = replace(settings, review_metrics=review is not None)
    runner = await probes.serve(
        settings, telemetry, review or nobody, ready=lambda: ready, alive=lambda: alive
    )
    try:
        yield f"http://{HOST}:{port}"
    finally:
        await runner.cleanup()


async def _answers(path: str, **state: bool) -> tuple[int, str, str]:
    telemetry = Telemetry()
    telemetry.job(KEY, RUNNING)
    async with (
        served(telemetry, **state) as address,
        aiohttp.ClientSession() as session,
        session.get(address + path) as answer,
    ):
        return answer.status, answer.headers["Content-Type"], await answer.text()


def test_prometheus_can_read_metrics():
    status, kind, text = asyncio.run(_answers("/metrics"))
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    steps = [s for f in text_string_to_metric_families(text) for s in f.samples if s.name == "rlhf_job_step"]
    assert [(s.labels, s.value) for s in steps] == [(JOB, 3)]


@pytest.mark.parametrize(
    ("path", "state", "status"),
    [
        ("/readyz", {}, 200),
        ("/readyz", {"ready": False}, 503),
        ("/readyz", {"alive": False}, 200),
        ("/healthz", {}, 200),
        ("/healthz", {"alive": False}, 503),
        ("/healthz", {"ready": False}, 200),
    ],
)
def test_probes(path, state, status):
    assert asyncio.run(_answers(path, **state))[0] == status


class Reviewer:
    """An API server that knows the tokens `reader` and `other`, and hears of everything it is asked."""

    def __init__(self, broken: bool = False) -> None:
        self.asked: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self._broken = broken

    async def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body["kind"])
        await self.hold.wait()
        if self._broken:
            raise ApiError(403, "Forbidden", "tokenreviews is forbidden: User cannot create")
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            known = spec["token"] in ("reader", "other")
            user = {"username": spec["token"], "uid": "1", "groups": ["all"]}
            return {"status": {"authenticated": True, "user": user} if known else {"error": "unknown"}}
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        assert (spec["uid"], spec["groups"]) == ("1", ["all"])
        return {"status": {"allowed": spec["user"] == "reader"}}


async def _scrapes(review: Reviewer, *headers: str) -> list[int]:
    async with served(Telemetry(), review=review) as address, aiohttp.ClientSession() as session:
        statuses = []
        for header in headers:
            sent = {"Authorization": header} if header else {}
            async with session.get(f"{address}/metrics", headers=sent) as answer:
                statuses.append(answer.status)
        return statuses


def test_metrics_are_for_who_may_get_them():
    review = Reviewer()
    headers = ("", "Basic cmVhZGVyOg==", "Bearer ", "Bearer unknown", "Bearer other", "Bearer reader")
    assert asyncio.run(_scrapes(review, *headers)) == [401, 401, 401, 401, 403, 200]
    assert review.asked.count("TokenReview") == 3, "the others have no token"
    review = Reviewer()
    assert asyncio.run(_scrapes(review, *["Bearer reader"] * 3)) == [200] * 3
    assert review.asked == ["TokenReview", "SubjectAccessReview"], "it is remembered for a while"
    assert asyncio.run(_scrapes(Reviewer(broken=True), "Bearer reader")) == [503]


async def _flood() -> tuple[int, list[int]]:
    review = Reviewer()
    review.hold.clear()
    async with served(Telemetry(), review=review) as address, aiohttp.ClientSession() as session:

        async def scrape(token: int) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{address}/metrics", headers=headers) as answer:
                return answer.status

        scrapes = [asyncio.create_task(scrape(number)) for number in range(50)]
        await asyncio.wait(scrapes, return_when=asyncio.FIRST_COMPLETED)
        while len(review.asked) < 8 or sum(task.done() for task in scrapes) < 42:
            await asyncio.sleep(0.01)
        under_way = len(review.asked)
        review.hold.set()
        return under_way, await asyncio.gather(*scrapes)


def test_wrong_tokens_are_no_way_to_flood_the_api_server():
    under_way, statuses = asyncio.run(_flood())
    assert under_way == 8
    assert (statuses.count(401), statuses.count(503)) == (8, 42)


async def _helm_test(*, leads: bool, ready: bool) -> int:
    """The exit code of `helm test`'s pod."""
    telemetry = Telemetry()
    telemetry.leading(leads)
    (container,) = the(render(), "Pod")["spec"]["containers"]
    _, *arguments = container["command"]
    impatient = [argument.replace("+ 60", "+ 1") for argument in arguments]
    async with served(telemetry, ready=ready) as address:
        environment = {**os.environ, "OPERATOR": address}
        program = await asyncio.create_subprocess_exec(
            sys.executable, *impatient, env=environment, stderr=asyncio.subprocess.DEVNULL
        )
        return await asyncio.wait_for(program.wait(), 60)


@pytest.mark.parametrize(("leads", "ready", "code"), [(True, True, 0), (False, True, 1), (True, False, 1)])
def test_helm_test_passes_where_an_operator_is_ready_and_leads(leads, ready, code):
    assert asyncio.run(_helm_test(leads=leads, ready=ready)) == code
