"""The operator's own clock may be wrong: deadlines are judged by the API server's."""

import time
from email.utils import formatdate

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

from rlhf_operator.kube.clock import ServerClock

pytestmark = pytest.mark.usefixtures("crd")
HOUR = 3600.0


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_the_grace_of_a_pod_and_the_deadline_of_a_job_are_the_servers(
    operators: Operators, namespace: str, off: float
) -> None:
    async def body(right: SteppedOperator, wrong: SteppedOperator) -> None:
        wrong.api.clock.local = lambda: time.time() + off
        made = job(namespace)
        made["spec"] = {**made["spec"], "activeDeadlineSeconds": 600}
        await right.api.create(made)
        await right.reconcile("ppo")
        await right.bind("ppo-trainer-0")
        await right.api.delete("Pod", namespace, "ppo-trainer-0", grace=300)
        for _ in range(2):
            await wrong.reconcile("ppo")
        pod = await right.api.get("Pod", namespace, "ppo-trainer-0")  # saves its checkpoint
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 300
        status = (await right.api.get("RLHFJob", namespace, "ppo"))["status"]
        assert status["phase"] == "Provisioning"
        # Nor does another server's clock, which no answer of the one that wrote its deadline contradicts.
        wrong.api.clock = ServerClock(lambda: time.time() + 400)
        await wrong.reconcile_cached("ppo")
        assert "ppo-trainer-0" in await right.names("Pod")
        wrong.reconciler._deletions._clock = lambda: time.monotonic() + 400
        await wrong.reconcile_cached("ppo")
        assert "ppo-trainer-0" not in await right.names("Pod")

    operators(body)


def test_a_clock_that_no_answer_contradicts_is_left_as_it_is() -> None:
    local = 1_000_000.25
    clock = ServerClock(lambda: local)
    for date in (local, local - 0.25, local - 1.0):  # cut to seconds, and a second under way
        clock.observe_date_header(formatdate(date, usegmt=True), local - 1.0)
        assert clock.time() == local
    clock.observe_date_header(formatdate(local - 60, usegmt=True), local)
    assert clock.time() == local - 59.25
    clock.observe_date_header("no date", local)
    clock.observe_date_header(formatdate(local + 60, usegmt=True), local)
    assert clock.time() == local + 59.75
