"""The transition rule on a current API server: changes of running, suspended and failed jobs."""

import pytest
from tests.api_server.current.jobs import Jobs
from tests.api_server.current.server import Refused, Server
from tests.unit.api.manifests import document
from tests.unit.api.schema.cel_cases import ALLOWED, CHANGES, RUNNING, failed

from rlhf_api.contract.status import CORRECTABLE

DRY = "dryRun=All"
STATUS = {"phase": "Running", "totalSteps": 4}


@pytest.fixture(scope="module")
def running(modern: Server) -> Jobs:
    """With a job that runs; no test changes it."""
    made = Jobs(modern)
    made.with_status(STATUS)
    return made


@pytest.fixture(scope="module")
def suspended(modern: Server) -> Jobs:
    made = Jobs(modern)
    made.with_status({"phase": "Suspended", "totalSteps": 4}, "spec.suspend=true")
    return made


@pytest.mark.parametrize("change", [change for change, _ in CHANGES])
def test_a_running_job_cannot_change_and_a_suspended_one_can(
    running: Jobs, suspended: Jobs, change: str
) -> None:
    spec = document(change)["spec"]
    with pytest.raises(Refused, match=RUNNING):
        running.replace(spec, query=DRY)
    suspended.replace(spec, query=DRY)


@pytest.mark.parametrize("change", ALLOWED)
def test_what_a_running_job_may_change(running: Jobs, change: str) -> None:
    running.replace(document(change)["spec"], query=DRY)


def test_a_section_that_is_taken_away_is_a_change(running: Jobs) -> None:
    with pytest.raises(Refused, match=RUNNING):
        running.merge({"spec": {"ppo": None}}, query=DRY)


def test_a_job_that_waits_for_its_checkpoint_may_change(jobs: Jobs) -> None:
    """`spec.suspend` is what counts: the trainer may still be saving."""
    jobs.with_status(STATUS)
    jobs.merge({"spec": {"suspend": True}})
    jobs.replace(document("spec.suspend=true", "spec.steps=9")["spec"])
    assert jobs.get()["spec"]["steps"] == 9


@pytest.mark.parametrize("reason", CORRECTABLE)
def test_a_job_that_failed_by_its_spec_can_be_corrected_in_place(jobs: Jobs, reason: str) -> None:
    jobs.with_status(failed(reason), "spec.generator.engineArguments.dtype=half")  # what no rule can say
    jobs.replace(document("spec.steps=9")["spec"])
    assert jobs.get()["spec"]["steps"] == 9


def test_a_job_that_ran_and_failed_stays_as_it_was(jobs: Jobs) -> None:
    jobs.with_status(failed("BackoffLimitExceeded"))
    with pytest.raises(Refused, match=RUNNING):
        jobs.replace(document("spec.steps=9")["spec"])


def test_a_new_status_is_no_change_of_the_spec(jobs: Jobs) -> None:
    jobs.with_status(STATUS)
    jobs.merge({"status": {"step": 3, "phase": "Succeeded"}, "spec": {"steps": 9}}, part="/status")
    assert jobs.get()["status"]["step"] == 3
    assert jobs.get()["spec"]["steps"] == 4


def test_a_running_job_scales(jobs: Jobs) -> None:
    """Also one whose manifest does not set the number of generators."""
    manifest = document()
    del manifest["spec"]["generator"]
    jobs.create(manifest)
    jobs.merge({"status": {**STATUS, "generatorReplicas": 1, "selector": "a=b"}}, part="/status")
    jobs.merge({"spec": {"replicas": 3}}, part="/scale")
    assert jobs.get()["spec"]["generator"] == {"replicas": 3}
    with pytest.raises(Refused, match=r"spec.generator.replicas.*greater than or equal to 1"):
        jobs.merge({"spec": {"replicas": 0}}, part="/scale")
