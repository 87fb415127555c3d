"""The operator's cache: the newest version of each object, reduced to what it reads, without deleted ones."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from rlhf_operator.cluster.observe.pod_events import DeletionWatch
from rlhf_operator.cluster.watching.cache import Cache
from rlhf_operator.cluster.watching.resync import missed_changes, sweep
from rlhf_operator.job.pod_status import seconds
from rlhf_operator.job.snapshot import Pod
from rlhf_operator.job.trimmed import trim
from rlhf_operator.kube.api import Api

KEY = ("team", "ppo")


def job(version: int = 5, uid: str = "job-1", **more) -> dict:
    return {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {
            "name": "ppo",
            "namespace": "team",
            "uid": uid,
            "resourceVersion": str(version),
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {"task": "ppo"},
        **more,
    }


def pod(version: int = 10, uid: str = "pod-1", index: int = 0, name: str = "ppo", **status) -> dict:
    """As an API server returns it, with a status of a running one."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-generator-{index}",
            "namespace": "team",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app.kubernetes.io/managed-by": "rlhf-operator",
                "rlhf.dev/job": name,
                "rlhf.dev/role": "generator",
                "rlhf.dev/index": str(index),
                "rlhf.dev/attempt": "0",
            },
            "annotations": {"big": "x" * 500},
            "ownerReferences": [{"kind": "RLHFJob", "name": name, "uid": "job-1", "controller": True}],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "nodeName": "node1",
            "containers": [{"name": "role", "image": "trainer", "env": [{"name": "A", "value": "b" * 2000}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "startTime": "2026-01-01T00:00:01Z",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"},
            ],
            "containerStatuses": [
                {
                    "name": "role",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "image": "trainer:1",
                    "imageID": "sha256:" + "a" * 64,
                    "containerID": "containerd://" + "b" * 64,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}},
                }
            ],
            **status,
        },
    }


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_objects_are_found_under_their_job(cache):
    assert cache.put(job()) == KEY
    assert cache.put(pod(index=0, uid="a")) == KEY
    assert cache.put(pod(index=1, uid="b")) == KEY
    assert cache.put(pod(index=0, uid="c", name="other")) == ("team", "other")
    assert cache.keys() == [KEY]
    assert [p["metadata"]["uid"] for p in cache.pods(KEY)] == ["a", "b"]
    assert cache.workloads(KEY) == []


def test_a_pod_of_nobody_is_not_kept(cache):
    stranger = pod()
    del stranger["metadata"]["labels"], stranger["metadata"]["ownerReferences"]
    assert cache.put(stranger) is None
    assert cache.uids("Pod") == set()


@pytest.mark.parametrize("label", [{}, {"rlhf.dev/job": "other"}], ids=["taken", "changed"])
def test_a_pod_whose_label_somebody_takes_is_still_its_owners(cache, label):
    cache.put(pod(version=8))
    relabelled = pod(version=9, phase="Failed")
    relabelled["metadata"]["labels"] = label
    assert cache.put(relabelled) == KEY
    (cached,) = cache.pods(KEY)
    assert (cached["metadata"]["labels"], cached["status"]["phase"]) == (label, "Failed")
    assert cache.drop(relabelled) == KEY
    assert cache.pods(KEY) == []


def test_the_newest_stays_whatever_comes_last(cache):
    answer = pod(version=8, phase="Running")
    assert cache.put(answer) == KEY  # the answer to our own write
    assert cache.put(answer) is None  # the watch tells the same
    assert cache.put(pod(version=7, phase="Pending")) is None  # and what was before
    assert cache.pods(KEY)[0]["status"]["phase"] == "Running"
    assert cache.put(pod(version=9, phase="Failed")) == KEY
    assert cache.pods(KEY)[0]["status"]["phase"] == "Failed"


def test_a_status_is_kept_but_no_news(cache):
    """The operator wrote it itself; a watch may report it before the API server's reply to the write arrives."""
    cache.put(job(version=5))
    assert cache.put(job(version=6, status={"phase": "Running"})) is None
    assert cache.job(KEY)["status"] == {"phase": "Running"}
    annotated = job(version=7, status={"phase": "Running"})
    annotated["metadata"]["annotations"] = {"rlhf.dev/checkpoint": "now"}
    assert cache.put(annotated) == KEY
    assert (
        cache.put({**annotated, "metadata": {**annotated["metadata"], "resourceVersion": "8"}, "spec": {}})
        == KEY
    )
    assert cache.put(job(version=9, uid="another", status={"phase": "Running"})) == KEY


def test_a_job_rests_from_its_end_until_it_goes_on(cache):
    def active() -> list[tuple[str, str]]:
        assert cache.active == len(cache.active_keys())
        return cache.active_keys()

    cache.put(job(version=5))
    assert active() == [KEY]
    for version, phase in enumerate(("Running", "Suspended", "Provisioning", "Failed"), 6):
        cache.put(job(version=version, status={"phase": phase}))
        assert active() == ([KEY] if phase in ("Running", "Provisioning") else [])
    cache.drop(job(version=9))
    cache.put(job(version=20, uid="job-2"))
    assert active() == [KEY]
    cache.put(job(version=21, uid="job-2", status={"phase": "Succeeded"}))
    cache.drop_uids("RLHFJob", ["job-2"])
    cache.put(job(version=30, uid="job-3", status={"phase": "Succeeded"}))
    cache.leave("team")
    assert active() == []
    cache.put(job(version=40, uid="job-4"))
    assert active() == [KEY]


def test_versions_are_numbers(cache):
    cache.put(pod(version=9))
    assert cache.put(pod(version=10)) == KEY


def test_what_was_deleted_does_not_come_back(cache):
    cache.put(pod())
    assert cache.drop(pod(version=20)) == KEY
    assert cache.put(pod(version=15)) is None  # a late answer
    assert cache.pods(KEY) == []


def test_what_has_only_lost_the_label_that_a_watch_selects_by_is_there_in_its_later_versions(cache):
    cache.put(pod(version=8))
    assert cache.drop(pod(version=20)) == KEY  # so the watch tells of it
    assert cache.put(pod(version=21)) == KEY
    assert len(cache.pods(KEY)) == 1


def test_a_deletion_seen_before_the_object_counts(cache):
    assert cache.drop(pod(version=20)) is None
    assert cache.put(pod(version=15)) is None


def test_a_new_object_of_the_same_name_replaces_the_old(cache):
    cache.put(job(version=5, uid="old"))
    cache.put(job(version=9, uid="new"))
    assert cache.drop(job(version=8, uid="old")) is None
    assert cache.job(KEY)["metadata"]["uid"] == "new"
    assert cache.drop(job(version=12, uid="new")) == KEY
    assert cache.job(KEY) is None


def test_what_a_listing_does_not_show_is_dropped(cache):
    cache.put(job())
    for index in range(3):
        cache.put(pod(uid=f"pod-{index}", index=index))
    assert cache.drop_uids("Pod", {"pod-0", "pod-2", "never-seen"}) == {KEY}
    assert cache.uids("Pod") == {"pod-1"}
    assert cache.drop_uids("RLHFJob", {"job-1"}) == {KEY}
    assert cache.keys() == []


def test_readers_cannot_change_what_is_kept(cache):
    cache.put(job())
    cache.job(KEY)["spec"]["task"] = "sft"
    assert cache.job(KEY)["spec"] == {"task": "ppo"}


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": "Pending", "containerStatuses": [], "podIP": ""},
        {"phase": "Failed", "reason": "Evicted", "message": "low on memory", "containerStatuses": []},
        {
            "phase": "Failed",
            "containerStatuses": [
                {
                    "name": "role",
                    "state": {
                        "terminated": {
                            "exitCode": 137,
                            "reason": "OOMKilled",
                            "message": "x",
                            "finishedAt": "2026-01-01T01:00:00Z",
                        }
                    },
                }
            ],
        },
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
            ],
        },
    ],
)
def test_nothing_is_left_out_that_is_looked_at(status):
    full = pod(**status)
    assert Pod.of(trim(full)) == Pod.of(full)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"running": {"startedAt": None}},
        {"terminated": {"exitCode": None, "finishedAt": None, "reason": None, "message": None}},
        {"waiting": {"reason": None, "message": None}},
    ],
    ids=str,
)
def test_a_null_is_as_if_nothing_was_said(state):
    """Kubelets that are no kubelets write null for a time that they do not know."""
    container_status = {"name": "role", "ready": False, "state": state}
    body = pod(containerStatuses=[container_status], conditions=None, podIP=None, startTime=None)
    body["metadata"]["deletionGracePeriodSeconds"] = None
    trimmed = Pod.of(trim(body))
    assert trimmed == Pod.of(body)
    assert trimmed.started == seconds("2026-01-01T00:00:00Z")


def test_a_pods_deadline_is_its_whole_grace_period_as_this_process_observes_it():
    """The servers' clocks differ: its deadline is of one of them, and what it is compared with of another."""
    body, clock = pod(), 1000.0
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:05:00Z", "deletionGracePeriodSeconds": 300}
    deadline = seconds("2026-01-01T00:05:00Z")
    watch, living = DeletionWatch(lambda: clock), Pod.of(pod(uid="pod-2", index=1))

    def at(now: float) -> float | None:
        deleted, stays = watch.observed(KEY, [Pod.of(body), living], now)
        assert stays == living
        return deleted.deletion_deadline

    assert at(deadline - 300) == deadline
    for ahead in (500, 275):  # of the clock that wrote the deadline
        clock += 5
        assert at(deadline - 295 + ahead) == pytest.approx(deadline - 295 + ahead + 300 - (clock - 1000))
    clock = 1300.0
    assert at(deadline) == deadline
    assert at(deadline + 500) == deadline + 500, "its grace period has passed, whatever the time"
    watch.forget(KEY)
    assert at(deadline + 500) == deadline + 800, "another process begins anew"


def test_revisions_that_go_back_are_told_of(cache):
    """After a restore of etcd from a backup, no watch and no listing would be news to the cache."""

    class Restored(Api):
        def __init__(self) -> None:
            pass

        async def list(self, kind: str, *_: object, **__: object) -> AsyncIterator[dict]:
            for body in (job(version=7), pod(version=30)):
                if body["kind"] == kind:
                    yield body

    cache.put(job(version=9))
    cache.put(pod(version=10))
    swept = asyncio.run(sweep(Restored(), None, ("Pod", "RLHFJob"), cache))
    assert swept.older == ["RLHFJob team/ppo"]


def test_what_is_not_looked_at_is_left_out(cache):
    cache.put(job())
    cache.put(pod())
    assert "managedFields" not in cache.job(KEY)["metadata"]
    cached = cache.pods(KEY)[0]
    assert cached["spec"] == {"nodeName": "node1", "containers": [{"name": "role"}]}, (
        "of those, names and ports"
    )
    assert cached["metadata"]["ownerReferences"]
    assert len(json.dumps(cached)) < 1200 < len(json.dumps(pod()))


def test_a_thousand_jobs_are_small(cache):
    """The whole operator is to stay below 150 MiB then."""
    status = {"conditions": [{"type": t, "message": "m" * 100} for t in "ABCDE"], "message": "x" * 500}
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1000):
        body = job(uid=f"job-{number}", status=status)
        body["metadata"]["name"] = f"job-{number}"
        cache.put(body)
        for index in range(5):
            cache.put(pod(uid=f"pod-{number}-{index}", index=index, name=f"job-{number}"))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache.keys()) == 1000
    assert (after - before) / 2**20 < 16


def test_of_companions_only_the_version_is_kept(cache):
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1000):
        labels = {"rlhf.dev/job": f"ppo-{number}", "note": "n" * 4000}
        meta = {"name": "config", "namespace": "team", "uid": f"u-{number}", "resourceVersion": "7"}
        cache.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "labels": labels}})
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.version("ConfigMap", ("team", "ppo-999"), "config") == 7
    assert (after - before) / 1000 < 1 << 10


def test_a_watch_owes_what_two_sweeps_show_and_it_has_not_told():
    cache, busy, lost, brief = Cache(), pod(10, "busy"), pod(11, "lost", 1), pod(12, "brief", 2)
    cache.put(pod(9, "busy"))
    before = {body["metadata"]["uid"]: body for body in (busy, lost, brief) if not cache.knows(body)}
    assert before.keys() == {"busy", "lost", "brief"}  # which may all be on their way
    cache.put(busy)  # told since then, and changed again; the third was made and deleted in between
    now = {"busy": pod(20, "busy"), "lost": lost}
    assert missed_changes(before, now, cache) == ["Pod team/ppo-generator-1"]
    cache.put(lost)
    assert missed_changes(before, now, cache) == []
    cache.drop(lost)
    assert cache.knows(lost)
