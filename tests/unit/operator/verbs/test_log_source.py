"""A process's log is read from its container, until another start has taken its place."""

from typing import Any

from rlhf_operator.job.names import INDEX, RANK, ROLE
from rlhf_operator.verbs.log_source import LogSource, has_begun, has_ended, is_replaced, log_sources

RUNNING, ENDED = {"running": {}}, {"terminated": {"exitCode": 1}}


def pod(*containers: dict[str, Any], uid: str = "1", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "job-trainer-0", "uid": uid, "labels": {ROLE: "trainer", INDEX: "0"} | labels},
        "spec": {"containers": [{"name": each["name"]} for each in containers]},
        "status": {"containerStatuses": [*containers]},
    }


def container(name: str, start: int = 0, **states: Any) -> dict[str, Any]:
    return {"name": name, "restartCount": start, "state": RUNNING} | states


def shared(engine: dict[str, Any]) -> dict[str, Any]:
    return pod(container("role"), engine, container("side"))


def engine_of(body: dict[str, Any]) -> LogSource:
    return log_sources(body)[1]


def test_a_pod_of_its_own_has_one_process_beside_its_sidecars() -> None:
    (source,) = log_sources(pod(container("role"), container("side-0"), **{RANK: "1"}))
    assert (source.container, source.process) == ("role", "trainer-0-1")


def test_a_shared_pod_has_a_log_for_each_process() -> None:
    sources = log_sources(shared(container("generator-1")))
    assert [(each.container, each.process) for each in sources] == [
        ("role", "trainer-0"),
        ("generator-1", "generator-1"),
    ]


def test_a_container_that_waits_for_its_next_start_has_the_log_of_the_last_one() -> None:
    body = shared(container("generator-0", state={"waiting": {}}, lastState=ENDED))
    source = engine_of(body)
    assert has_begun(body, source)
    assert has_ended(body, source)
    first = shared(container("generator-0", state={"waiting": {}}))
    assert not has_begun(first, engine_of(first))


def test_the_next_start_is_another_log() -> None:
    before, after = shared(container("generator-0")), shared(container("generator-0", 1, lastState=ENDED))
    source = engine_of(before)
    assert not is_replaced(before, source)
    assert not has_ended(after, engine_of(after))
    assert is_replaced(after, source)
    assert is_replaced(before | {"metadata": before["metadata"] | {"uid": "2"}}, source)
