"""The page of `rlhf status` for objects of the API server."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from rlhf_operator.console.exits import Failure
from rlhf_operator.console.text import age, columns, one_line, span
from rlhf_operator.job.snapshot import Job
from rlhf_operator.verbs.format import change
from rlhf_operator.verbs.jobs import status_of
from rlhf_operator.verbs.status import table
from rlhf_operator.verbs.status_view import page

ROOT = Path(__file__).parents[4]
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
RUNNING = {
    "phase": "Running",
    "activity": "generating",
    "message": "waiting for generator 1/2",
    "startTime": "2026-01-01T10:00:00Z",
    "estimatedEnd": "2026-01-01T12:02:40Z",
    "step": 120,
    "totalSteps": 400,
    "reward": 0.5123,
    "kl": 0.0123,
    "loss": -0.01,
    "tokensPerSecond": 12340,
    "weightVersion": 120,
    "staleness": 0.5,
    "responsesContinued": 3,
    "importanceEffective": 0.75,
    "queue": 12,
    "restarts": 1,
    "gpuSeconds": 86_760,
    "cost": 60.25,
    "lastCheckpoint": {"step": 100, "time": "2026-01-01T11:56:50+00:00", "uri": "s3://bucket/ppo"},
    "ledger": {
        "epoch": 2, "issued": 640, "returned": 633, "trained": 576, "requeued": 5, "dropped": 1, "lost": 0,
    },
    "roles": {
        "generator": {"desired": 2, "ready": 1, "restarts": 1},
        "trainer": {"desired": 1, "ready": 1},
    },
    "generators": [
        {
            "role": "generator", "name": "generator-0", "uid": "a", "ready": True, "weightVersion": 120, "epoch": 3,
            "lastSyncTime": "2026-01-01T11:59:56Z",
        },
        {"role": "generator", "name": "generator-1", "uid": "b", "ready": False},
    ],
    "plan": {"trainer": {"pods": 1, "gpus": 8, "memory": "61 GB of 80 GB"}, "generator": {"pods": 2, "gpus": 2}},
    "conditions": [
        {
            "type": "RolesReady", "status": "False", "reason": "RolesNotReady", "message": "waiting for generator 1/2",
            "lastTransitionTime": "2026-01-01T11:58:00Z",
        },
        {
            "type": "PodsScheduled", "status": "True", "reason": "Scheduled",
            "lastTransitionTime": "2026-01-01T10:00:00Z",
        },
        {
            "type": "Suspended", "status": "False", "reason": "NotSuspended",
            "lastTransitionTime": "2026-01-01T10:00:00Z",
        },
    ],
}  # fmt: skip


def body(status: Any = None, **meta: Any) -> dict[str, Any]:
    metadata = {
        "name": "ppo", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T09:55:00Z", **meta,
    }  # fmt: skip
    return {"metadata": metadata, "spec": {}, **({"status": status} if status else {})}


def event(minute: int, reason: str, **more: Any) -> dict[str, Any]:
    stamp = f"2026-01-01T11:{minute:02d}:00Z"
    return {
        "type": "Normal", "reason": reason, "message": f"{reason} happened", "lastTimestamp": stamp,
        "metadata": {"creationTimestamp": "2026-01-01T09:00:00Z"}, **more,
    }  # fmt: skip


def shown(status: Any = None, events: list[Any] = [], **meta: Any) -> str:  # noqa: B006
    job_body = body(status, **meta)
    return page(Job.of(job_body), status_of(job_body), events, NOW).plain


def test_each_teacher_has_a_row_below_its_role() -> None:
    teachers = [
        {"name": "small", "first": 0, "desired": 2, "ready": 2},
        {"name": "large", "first": 2, "desired": 1, "ready": 0},
    ]
    roles = {"reference": {"desired": 3, "ready": 2, "restarts": 1, "teachers": teachers}}
    assert "\n".join(
        [
            "ROLE                         READY   RESTARTS   GPUS",
            "reference                    2/3     1",
            "  small (reference-0 to 1)   2/2",
            "  large (reference-2)        0/1",
        ]
    ) in shown({**RUNNING, "roles": roles})


def test_a_running_job_at_a_glance() -> None:
    events = [
        event(58, "PodFailed", type="Warning", message="generator-1 was ended\nby SIGKILL", count=3),
        event(1, "Running"),
    ]
    assert shown(RUNNING, events, labels={"kueue.x-k8s.io/queue-name": "blue"}).splitlines() == [
        "ppo  Running  generating  (namespace team, made 2h 05m ago, queue blue)",
        "waiting for generator 1/2",
        "",
        f"[{'#' * 12}{'-' * 28}]  step 120/400, 2m 40s left (until 2026-01-01T12:02:40Z)",
        "reward 0.5123  KL 0.0123  loss -0.01  tokens/s 12,340  staleness 0.5  continued 3  effective sample 75%  "
        "queue 12  weights 120",
        "checkpoint step 100, 3m 10s ago, s3://bucket/ppo",
        "used 24.1 GPU-hours, cost 60.25",
        "prompts epoch 2: 640 issued, 633 returned, 576 trained, 5 requeued; in all 1 dropped, 0 lost",
        "",
        "ROLE        READY   RESTARTS   GPUS",
        "trainer     1/1     0          8",
        "generator   1/2     1          2",
        "",
        "Memory of one GPU",
        "  trainer: 61 GB of 80 GB",
        "",
        "GENERATOR     READY   WEIGHTS   EPOCH   LAST SYNC",
        "generator-0   yes     120       3       4s ago",
        "generator-1   no      -         -       -",
        "",
        "Conditions that are not as they should be",
        "  RolesReady   False   2m 00s ago   RolesNotReady: waiting for generator 1/2",
        "",
        "Events",
        "  59m 00s ago   Normal    Running     Running happened",
        "  2m 00s ago    Warning   PodFailed   generator-1 was ended by SIGKILL (3 times)",
    ]


@pytest.mark.parametrize("where", ["README.md", "docs/guides/clusters/cluster.md"])
def test_the_docs_show_such_a_page(where: str) -> None:
    usual = {
        name: value
        for name, value in RUNNING.items()
        if name not in ("responsesContinued", "importanceEffective")
    }
    usual |= {"staleness": 0, "trainerIdle": 0.41, "generatorIdle": 0.48}
    ready = {
        "type": "Ready", "status": "False", "reason": "Running", "message": "waiting for generator 1/2",
        "lastTransitionTime": "2026-01-01T11:58:00Z",
    }  # fmt: skip
    usual["conditions"] = [*RUNNING["conditions"], ready]
    events = [
        event(58, "PodFailed", type="Warning", message="generator-1 was ended by SIGKILL"),
        event(1, "Running", message="the trainer is running"),
    ]
    assert f"\n```\n{shown(usual, events)}\n```\n" in (ROOT / where).read_text()


def test_a_job_of_another_manager_waits_for_that_one() -> None:
    managed = body() | {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}
    assert page(Job.of(managed), None, [], NOW).plain == (
        "ppo  its manager has written no status yet  "
        "(namespace team, made 2h 05m ago, managed by kueue.x-k8s.io/multikueue)"
    )


def test_a_job_that_no_operator_has_seen() -> None:
    assert shown() == (
        "ppo  no operator has looked at it yet; is one installed, and running?  (namespace team, made 2h 05m ago)"
    )


def test_a_refused_job_shows_why_and_nothing_else() -> None:
    failed = {
        "type": "Failed", "status": "True", "reason": "ValidationFailed", "message": "spec.steps: is required",
        "lastTransitionTime": "2026-01-01T11:59:00Z",
    }  # fmt: skip
    status = {
        "phase": "Failed", "message": "spec.steps: is required", "totalSteps": 0, "conditions": [failed],
        "completionTime": "2026-01-01T11:59:00Z", "startTime": "2026-01-01T11:59:00Z",
    }  # fmt: skip
    assert shown(status).splitlines() == [
        "ppo  Failed  (namespace team, made 2h 05m ago, ended 1m 00s ago)",
        "spec.steps: is required",
        "",
        "Conditions that are not as they should be",
        "  Failed   True   1m 00s ago   ValidationFailed: spec.steps: is required",
    ]


def test_the_end_of_a_job_makes_no_condition_look_wrong() -> None:
    conditions = [
        {"type": kind, "status": is_so, "reason": reason, "lastTransitionTime": "2026-01-01T11:59:00Z"}
        for kind, is_so, reason in (("RolesReady", "False", "JobEnded"), ("Complete", "True", "Completed"))
    ]
    text = shown({"phase": "Succeeded", "step": 4, "totalSteps": 4, "conditions": conditions})
    assert "Conditions" not in text
    assert f"[{'#' * 40}]  step 4/4" in text


@pytest.mark.parametrize("phase", ["Failed", "Suspended", "Succeeded"])
def test_a_job_that_has_left_no_model_says_how_to_get_one(phase: str) -> None:
    text = str(shown({**RUNNING, "phase": phase}))
    assert ("rlhf checkpoint export s3://bucket/ppo 100 policy-100" in text) == (phase != "Succeeded")


def test_the_newest_eight_events_in_order_of_time() -> None:
    events = [event(minute, f"E{minute}") for minute in (5, 3, 9, 1, 7, 2, 8, 6, 4)]
    series = {
        "series": {"count": 2, "lastObservedTime": "2026-01-01T11:30:00.000000Z"},
        "lastTimestamp": None,
    }
    lines = shown(RUNNING, [*events, event(0, "Series", **series)]).partition("Events\n")[2].splitlines()
    assert [line.split()[4] for line in lines] == ["E3", "E4", "E5", "E6", "E7", "E8", "E9", "Series"]
    assert lines[-1].endswith("(2 times)")


def test_a_status_of_another_version_is_said_to_be_one() -> None:
    with pytest.raises(Failure, match="ppo: its status was written by another version of the operator"):
        status_of(body({"phase": "Invented", "totalSteps": 3}))


def test_a_line_per_change() -> None:
    read = status_of(body(RUNNING))
    assert change(read) == (
        "Running: waiting for generator 1/2  step 120/400  reward 0.5123  KL 0.0123  loss -0.01  tokens/s 12,340  "
        "staleness 0.5  continued 3  effective sample 75%  weights 120  checkpoint 100  restarts 1  "
        "prompts dropped 1, lost 0"
    )
    later = status_of(
        body(RUNNING | {"queue": 3, "activity": "training", "estimatedEnd": "2026-01-01T13:00:00Z"})
    )
    assert change(later) == change(read)
    assert change(None) == "no operator has looked at it yet"


def test_the_list_has_the_columns_of_first_priority() -> None:
    definitions = [{"name": "Name", "priority": 0}, {"name": "KL"}, {"name": "Queue", "priority": 1}]
    rows = [{"cells": ["ppo", 0.5, 3]}, {"cells": ["longer", None, 4]}]
    assert table(definitions, rows) == ["NAME     KL", "ppo      0.5", "longer"]
    rows = [{**row, "object": {"metadata": {"namespace": "team"}}} for row in rows]
    everywhere = ["NAMESPACE   NAME     KL", "team        ppo      0.5", "team        longer"]
    assert table(definitions, rows, namespaces=True) == everywhere


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0s"),
        (59.6, "1m 00s"),
        (59, "59s"),
        (125, "2m 05s"),
        (7322, "2h 02m"),
        (90000, "1d 01h"),
        (9e6, "104d 04h"),
    ],
)
def test_spans(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_small_texts() -> None:
    assert age("2026-01-01T11:59:20.123456Z", NOW) == "40s"
    assert columns([("a", "b", "c"), ("long", "", "d")]) == ["a      b   c", "long       d"]
    assert one_line("a\x1b[31m\nb") == "a␛[31m b"
