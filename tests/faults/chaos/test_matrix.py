"""A part of the fault matrix (benchmarks/results/faults.md) on
one job: two ranks, two vLLM servers, a reward, a reference, S3."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.matrix.cells import Cell, cells
from tests.faults.matrix.kills import ANY_TIME, schedule
from tests.faults.matrix.page import happened, page
from tests.faults.matrix.responses import begins
from tests.faults.matrix.running import Running, running
from tests.support.servers.seaweed import Server

pytestmark = pytest.mark.slow
RAN = {"date": "2026-01-02", "cores": 2}
SUPERVISOR = "lost its supervising process, which was ended by SIGKILL"
KILLED = [
    ("torchrun", "generating", "trainer", "trainer-0 was ended by SIGKILL"),
    ("reward", "scoring", "reward", "reward-0 was ended by SIGKILL"),
    ("reference", "scoring", "reference", "reference-0 was ended by SIGKILL"),
    ("supervisor of the reward", "scoring", "reward", f"reward-0 {SUPERVISOR}"),
    ("supervisor of the trainer", "training", "trainer", f"trainer-0 {SUPERVISOR}"),
    ("generator engine", "committing", "generator", "exited with code 70: vLLM's process EngineCore (pid "),
]


def test_an_environments_process_that_fails_has_its_episodes_played_again(
    tmp_path: Path, store_server: Server
):
    """First here: the job of the other tests trains on for as long as they last."""
    with running("episodes", tmp_path, store_server) as job:
        for cell in cells("episodes"):
            outcome = job.strike(cell)
            assert (outcome.lost, outcome.twice, outcome.old, outcome.end) == (0, 0, 0, ""), outcome
            assert happened({"events": outcome.events, "end": ""}) == "went on", outcome


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def job(folder: Path, store_server: Server) -> Iterator[Running]:
    with running("on-policy", folder, store_server) as job:
        yield job


@pytest.mark.parametrize(("victim", "moment", "role", "words"), KILLED)
def test_what_is_killed_is_started_again_and_nothing_is_lost(job: Running, victim, moment, role, words):
    outcome = job.strike(Cell("on-policy", victim, "SIGKILL", moment))
    assert (outcome.lost, outcome.twice, outcome.gone, outcome.old, outcome.end) == (0, 0, 0, 0, ""), outcome
    assert any(words in event for event in outcome.events), outcome
    assert happened({"events": outcome.events, "end": outcome.end}) == f"{role} started again"


def test_generators_tell_a_trainer_from_those_before_it(job: Running, folder: Path):  # noqa: ARG001  after those kills
    (log,) = folder.rglob("logs/generator-0.log")
    epochs = [int(epoch) for epoch in re.findall(r"the trainer has epoch (\d+)", log.read_text())]
    assert epochs == sorted(epochs)
    assert epochs[0] < epochs[-1]


def test_a_page_says_what_was_not_run():
    cell = {"mode": "on-policy", "victim": "reward", "fault": "SIGKILL", "moment": "scoring"} | RAN
    result = {
        "seconds": 3.0,
        "lost": 0,
        "twice": 0,
        "again": 7,
        "events": ["reward-0 started again"],
        "end": "",
    }
    failed = {
        **cell,
        "moment": "training",
        "failed": "nothing within 180 s",
        "date": "2026-01-03",
        "cores": 4,
    }
    text = page([{**cell, **result}, {**cell, **result, "seconds": 5.0}, failed])
    assert "Measured from 2026-01-02 to 2026-01-03 (x86_64, no GPU), each job on 2 or 4 cores." in text
    assert "| reward | scoring | reward started again | 2 | 3.0 | 5.0 | 0 | 0 | 7 |" in text
    assert "| reward | training | **no step**: nothing within 180 s | 1 |" in text
    assert "reward generating, broadcasting, committing, checkpointing;" in text


def test_a_page_tells_when_the_status_of_a_cluster_s_job_went_on():
    cell = {
        "mode": "on pods",
        "victim": "API server",
        "fault": "SIGSTOP",
        "moment": "generating",
        "events": [],
    }
    result = {"seconds": 0.5, "lost": 0, "twice": 0, "again": 7, "end": ""}
    rows = [
        {**cell, **result, "told": seconds, "steps": 10 * i} for i, seconds in enumerate((41.0, 30.5, 33.0))
    ]
    text = page([*rows, {**cell, **result, "victim": "etcd"}])
    assert "| API server | generating | went on | 3 | 0.5 | 0.5 | 0 | 0 | 7 | 33.0 | 20 |" in text
    assert "| etcd | generating | went on | 1 | 0.5 | 0.5 | 0 | 0 | 7 |  |  |" in text


def test_a_page_tells_what_kills_at_random_cost():
    kill = {"seed": 3, "after": 1.5, "victim": "torchrun", "moment": ANY_TIME}
    result = {"seconds": 9.04, "lost": 0, "twice": 1, "old": 0, "begun": 4, "gone": 2}
    text = page([], [kill | result, kill | {"after": None, "failed": "nothing within 180 s"}])
    assert "2 kills of the trainer and the generators" in text
    assert "| torchrun | 2 | 1 | 1 | 9.0 | 9.0 | 0 | 1 | 0 | 4 | 2 |" in text
    assert "the other slowed" not in text
    slow = kill | result | {"victim": "generator engine", "slow": True, "gone": 0}
    _, text = page([], [kill | result, slow]).split("## One generator killed, the other slowed")
    assert "is killed 1 times (seeds 3), after 1 of which the job went on" in text.replace("\n", " ")
    assert "| generator engine | 1 | 1 | 0 | 9.0 | 9.0 | 0 | 1 | 0 | 4 | 0 |" in text


def test_a_page_tells_what_losses_like_those_of_spot_instances_cost():
    calm = {"spot": False, "seconds": 240.0, "samples": 960, "kills": 0, "lost": 0, "twice": 0, "old": 0}
    spot = calm | {"spot": True, "seconds": 250.0, "samples": 900, "kills": 4}
    text = page([], [], [row | RAN | {"load": 3.2} for row in (calm, spot, calm, spot)])
    assert "All of a job shares 2 cores" in text.replace("\n", " ")
    assert "| undisturbed | 480 | 0 | 1920 | 4.00 | 4.00, 4.00 | 0 | 0 | 0 | 3, 3 |" in text
    assert "| one killed every minute | 500 | 8 | 1800 | 3.60 | 3.60, 3.60 | 0 | 0 | 0 | 3, 3 |" in text
    assert "made 90% of the undisturbed samples/s" in text


def test_a_response_goes_on_from_its_part_with_the_versions_that_sampled_it():
    assert begins(([5, 6, 7], [1, 1, 2]), ([5, 6], [1, 1]))
    assert not begins(([5, 6, 7], [1, 2, 2]), ([5, 6], [1, 1]))
    assert not begins(([5], [1]), ([5, 6], [1, 1]))
    assert schedule(7, 6) == schedule(7, 6) != schedule(8, 6)
