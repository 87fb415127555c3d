"""Kueue's Workload, by its published types: what its state means, and what is said back."""

from typing import Any

import pytest
from tests.unit.operator.cluster.world import World

from rlhf_api.manifest.load import from_cluster
from rlhf_api.roles import Role
from rlhf_operator.cluster.act.kueue_client import priority_class, priority_fields
from rlhf_operator.cluster.config.settings import Defaults
from rlhf_operator.cluster.objects.kueue import deactivated, quota, released, report, workload
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.placement import flavors, placed, topology_request
from rlhf_operator.cluster.objects.pod_sets import PodSet
from rlhf_operator.cluster.observe.desired import desired_state
from rlhf_operator.job.names import CONFIG, PRIORITY, QUEUE
from rlhf_operator.job.snapshot import Job

STAMP = "2026-01-01T00:00:00Z"


def job(generators: int = 2, queue: str | None = "team") -> tuple[Job, Any]:
    body = World((f"spec.generator.replicas={generators}",)).job.body
    body = {**body, "metadata": {**body["metadata"], "labels": {QUEUE: queue} if queue else {}}}
    return Job.of(body), from_cluster(body).spec


def made(*conditions: str, reason: str = "Test", **status: Any) -> dict[str, Any]:
    """The Workload of two generators, in this state."""
    waiting, spec = job()
    body = workload(waiting, Pinned.make("job", spec, Defaults(image="i")))
    held = [{"type": c, "status": "True", "reason": reason, "message": "why"} for c in conditions]
    body["metadata"] |= {"resourceVersion": "7", "generation": 4}
    return {**body, "status": {"conditions": held, **status}}


CONFIGURATION = Pinned.make("job", job()[1], Defaults(image="i")).name
ADMITTED = ("QuotaReserved", "Admitted")


@pytest.mark.parametrize("queue", [None, "team"])
def test_only_what_a_manifest_asks_for_is_charged_to_a_queue(queue):
    """A queue without quota for memory admits no pod that requests some."""
    made = desired_state(job(queue=queue)[0], None, Defaults(image="i", requests=True))
    assert made.pinned.defaults.requests is (queue is None)


@pytest.mark.parametrize(
    ("there", "generators", "queue", "state"),
    [
        (None, 2, None, "none"),
        (None, 2, "team", "absent"),
        (made(), 2, None, "left"),
        (made(), 2, "team", "waiting"),
        (made(), 3, "team", "outdated"),
        (made(), 1, "team", "outdated"),
        (made(), 2, "other", "outdated"),
        (made("QuotaReserved"), 2, "team", "waiting"),
        (made(*ADMITTED), 2, "team", "admitted"),
        (made(*ADMITTED), 1, "team", "admitted"),
        (made(*ADMITTED), 50, "team", "outgrown"),
        (made(*ADMITTED), 2, "other", "outgrown"),
        (made(*ADMITTED, reclaimablePods=[{"name": "generator", "count": 1}]), 2, "team", "outgrown"),
        (made(*ADMITTED, "Evicted"), 2, "team", "evicted"),
        (made("Evicted"), 2, "team", "waiting"),
    ],
)
def test_what_a_workload_means_for_its_job(there, generators, queue, state):
    assert quota(*job(generators, queue), there, CONFIGURATION) == state


@pytest.mark.parametrize("held", [("QuotaReserved",), ADMITTED])
def test_a_job_starts_only_on_quota_for_the_pods_of_the_spec_as_it_stands(held):
    """Else quota for small pods would start large ones; pods that run, run as they began."""
    waiting, spec = job()
    more = Pinned.make(
        "job",
        from_cluster(World(("spec.pods.resources={limits: {memory: 8Gi}}",)).job.body).spec,
        Defaults(image="i"),
    )
    assert quota(waiting, spec, made(), more.name) == "outdated"
    assert quota(waiting, spec, made(*held), more.name) == "outgrown"
    state = quota(waiting, spec, made(*held), CONFIGURATION)
    assert quota(waiting, spec, made(*held), more.name, started=True) == state
    unnamed = made(*held)
    del unnamed["metadata"]["annotations"][CONFIG]
    assert quota(waiting, spec, unnamed, more.name) == state, "of a release that did not note it"


def test_a_deactivated_workload_is_left_so():
    off = made("Evicted")
    off["spec"]["active"] = False
    assert (quota(*job(), off, CONFIGURATION), deactivated(off)) == ("waiting", True)
    world = World()
    todo = world.step(quota="waiting", deactivated=True)
    assert (todo.queue, todo.create) == (None, ())
    assert "spec.active: false" in world.status.message


@pytest.mark.parametrize(
    ("quota", "queue"), [("waiting", None), ("outdated", None), ("evicted", "release"), ("outgrown", None)]
)
def test_suspending_a_job_does_not_undo_its_deactivation(quota, queue):
    """Otherwise resuming it would queue a new, active Workload."""
    world = World(("spec.suspend=true",))
    assert world.step(quota=quota, deactivated=True).queue == queue
    assert world.step(quota=quota).queue == "leave"


def test_a_job_whose_spec_is_refused_keeps_no_quota():
    world = World()
    world.step(quota="admitted")
    world.configs.clear()
    world.overrides = ("spec.sampling.topK=-2",)
    assert world.step().queue is None  # its pods still run
    for _ in range(2):
        world.kubelet()
    assert not world.pods
    assert world.step().queue == "leave"


@pytest.mark.parametrize("quota", ["absent", "outdated", "evicted"])
def test_a_workload_that_was_written_is_looked_at_again(quota):
    """The answer to the write may come before the watch, which then has no news of it."""
    todo = World().step(quota=quota)
    assert todo.queue in ("enter", "release")
    assert todo.again == 1.0


@pytest.mark.parametrize(
    ("reason", "requeued"),
    [
        *(("Preempted", "True"), ("NodeFailures", "True")),
        *(("PodsReadyTimeout", "False"), ("Deactivated", "False"), ("AdmissionCheck", "False")),
    ],
)
def test_an_evicted_job_gives_its_quota_back_and_keeps_its_workload(reason, requeued):
    patch = released(made(*ADMITTED, "Evicted", reason=reason, requeueState={"count": 2}), STAMP)
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert "requeueState" not in patch["status"]
    assert (patch["status"]["admission"], patch["status"]["reclaimablePods"]) == (None, None)
    states = {c["type"]: c["status"] for c in patch["status"]["conditions"]}
    assert states == {
        "QuotaReserved": "False",
        "Admitted": "False",
        "Evicted": "True",
        "Requeued": requeued,
        "PodsReady": "False",
    }


def test_readiness_and_what_can_be_reclaimed_are_said_once():
    there, (_, spec) = made(*ADMITTED), job(1)
    patch = report(there, spec, ready=False, stamp=STAMP)
    assert patch["status"]["reclaimablePods"] == [{"name": "generator", "count": 1}]
    assert patch["status"]["conditions"][-1] == {
        "type": "PodsReady",
        "status": "False",
        "reason": "WaitForStart",
        "message": "not all pods are ready",
        "lastTransitionTime": STAMP,
        "observedGeneration": 4,
    }
    there["status"] |= patch["status"]
    assert report(there, spec, ready=False, stamp=STAMP) is None
    assert report(there, spec, ready=True, stamp=STAMP) is not None


def test_pods_that_were_ready_wait_for_their_recovery_and_those_of_a_new_admission_for_their_start():
    """Kueue has a deadline for either."""
    there, (_, spec) = made(*ADMITTED), job()

    def pods_ready(*, ready: bool) -> tuple[str, str]:
        if (patch := report(there, spec, ready=ready, stamp=STAMP)) is not None:
            there["status"] |= patch["status"]
        condition = next(c for c in there["status"]["conditions"] if c["type"] == "PodsReady")
        return condition["status"], condition["reason"]

    assert pods_ready(ready=False) == ("False", "WaitForStart")
    assert pods_ready(ready=True) == ("True", "Started")
    for _ in range(2):
        assert pods_ready(ready=False) == ("False", "WaitForRecovery")
        assert pods_ready(ready=True) == ("True", "Recovered")
    there["status"]["conditions"].append({"type": "Evicted", "status": "True", "reason": "Preempted"})
    there["status"] |= released(there, STAMP)["status"]
    assert pods_ready(ready=False) == ("False", "WaitForStart")


def test_a_job_taken_out_of_its_queue_runs_and_leaves_no_workload():
    todo = World().step(quota="left")
    assert todo.create
    assert todo.queue == "leave"


FLAVOR = {
    "metadata": {"name": "h100"},
    "spec": {"nodeLabels": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
}
POD = {
    "metadata": {"name": "p", "labels": {"rlhf.dev/job": "job"}},
    "spec": {"nodeSelector": {"zone": "a", "gpu": "any"}, "tolerations": [{"key": "spot"}]},
}


def whole(role: Role) -> PodSet:
    return PodSet(role.value, role, 0, 1)


def admitted(*updates: dict[str, Any]) -> dict[str, Any]:
    assigned = {"name": "trainer", "count": 1, "flavors": {"cpu": "h100", "nvidia.com/gpu": "h100"}}
    return made(
        *ADMITTED,
        admission={"podSetAssignments": [assigned, {"name": "reward", "count": 1}]},
        admissionChecks=[{"name": "no-updates"}, {"name": "provision", "podSetUpdates": list(updates)}],
    )


def test_the_flavors_of_a_role_are_put_on_its_pods_and_on_no_others():
    there = admitted()
    assert flavors(there) == {"h100"}
    pod = placed(POD, whole(Role.TRAINER), there, {"h100": FLAVOR})
    assert pod["spec"]["nodeSelector"] == {"zone": "a", "gpu": "h100"}
    assert pod["spec"]["tolerations"] == [{"key": "spot"}, {"key": "gpu", "operator": "Exists"}]
    assert placed(POD, whole(Role.REWARD), there, {"h100": FLAVOR})["spec"] == POD["spec"]
    assert placed(POD, whole(Role.GENERATOR), there, {"h100": FLAVOR}) == POD
    assert placed(POD, whole(Role.TRAINER), made(*ADMITTED), {}) == POD


def test_what_an_admission_check_says_of_a_role_is_put_on_its_pods():
    update = {
        "name": "generator",
        "nodeSelector": {"pool": "new"},
        "tolerations": [{"key": "pool"}],
        "labels": {"team": "a", "rlhf.dev/job": "another"},
        "annotations": {"provision": "request-1"},
    }
    pod = placed(POD, whole(Role.GENERATOR), admitted(update), {})
    assert pod["spec"]["nodeSelector"] == {"zone": "a", "gpu": "any", "pool": "new"}
    assert pod["spec"]["tolerations"] == [{"key": "spot"}, {"key": "pool"}]
    assert pod["metadata"]["labels"] == {"team": "a", "rlhf.dev/job": "job"}
    assert pod["metadata"]["annotations"] == {"provision": "request-1"}
    assert placed(POD, whole(Role.TRAINER), admitted(update), {})["spec"] == POD["spec"]


def test_a_workload_has_the_priority_that_the_job_names():
    waiting, spec = job()
    pinned = Pinned.make("job", spec, Defaults(image="i"))
    assert "priority" not in workload(waiting, pinned)["spec"]
    urgent = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "value": 7}
    named = workload(waiting, pinned, priority_fields(urgent | {"metadata": {"name": "urgent"}}, None))[
        "spec"
    ]
    assert named["priority"] == 7
    assert named["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "urgent",
    }
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    of_pods = workload(waiting, pinned, priority_fields(high | {"metadata": {"name": "high"}}, None))["spec"]
    assert of_pods["priority"] == 1000
    assert of_pods["priorityClassRef"] == {
        "group": "scheduling.k8s.io",
        "kind": "PriorityClass",
        "name": "high",
    }


def test_a_value_that_an_administrator_has_set_stays_while_the_class_does():
    """Changes in place of a job that waits."""
    waiting, spec = job()
    pinned = Pinned.make("job", spec, Defaults(image="i"))
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "value": 7}
    urgent, low = (kind | {"metadata": {"name": name}} for name in ("urgent", "low"))
    there = workload(waiting, pinned, priority_fields(urgent, None))
    there["spec"]["priority"] = 50
    assert priority_fields(urgent, there)["priority"] == 50
    assert priority_fields(low, there)["priority"] == 7


def labelled(waiting: Job, priority: str) -> Job:
    labels = {**waiting.body["metadata"]["labels"], PRIORITY: priority}
    return Job.of({**waiting.body, "metadata": {**waiting.body["metadata"], "labels": labels}})


def test_a_job_without_a_class_of_workloads_has_the_priority_of_its_pods():
    """As in Kueue's own integrations."""
    overrides = "spec.pods.priorityClass=low", "spec.trainer.pods.priorityClass=high"
    plain, of_all, of_both = (asking(*overrides[:count]) for count in range(3))
    waiting = job()[0]
    assert priority_class(waiting, plain) is None
    assert priority_class(waiting, of_all) == ("PriorityClass", "low")
    assert priority_class(waiting, of_both) == ("PriorityClass", "high"), "of the first role that has one"
    assert priority_class(labelled(waiting, "urgent"), of_both) == ("WorkloadPriorityClass", "urgent")


def asking(*overrides: str) -> Pinned:
    return Pinned.make("job", from_cluster(World(overrides).job.body).spec, Defaults(image="i"))


@pytest.mark.parametrize(
    ("template", "expected"), [("null", None), ("batch", ("PriorityClass", "batch"))], ids=str
)
def test_the_priority_is_that_of_the_pods_as_they_are_made(template, expected):
    """The limits judge the pods: a `priorityClass` that a template overrides sets no priority."""
    fields = f"priorityClass: critical, template: {{spec: {{priorityClassName: {template}}}}}"
    assert priority_class(job()[0], asking(f"spec.pods={{{fields}}}")) == expected


def test_a_workload_that_waits_follows_the_label_of_its_priority():
    waiting, spec = job()
    pinned = Pinned.make("job", spec, Defaults(image="i"))
    urgent = labelled(waiting, "urgent")
    assert quota(urgent, spec, workload(waiting, pinned), CONFIGURATION) == "outdated"
    assert quota(urgent, spec, workload(urgent, pinned), CONFIGURATION) == "waiting"
    assert quota(waiting, spec, workload(urgent, pinned), CONFIGURATION) == "outdated"


RACKS = ("cloud.example/block", "cloud.example/rack")


def on_racks(*overrides: str) -> dict[str, Any]:
    """The Workload of a job whose trainers ask for one block, by role."""
    template = "spec.trainer.pods.template={metadata: {annotations: {%s}}}"
    body = World(
        (template % "kueue.x-k8s.io/podset-required-topology: cloud.example/block", *overrides)
    ).job.body
    pinned = Pinned.make("job", from_cluster(body).spec, Defaults(image="i"))
    return {each["name"]: each for each in workload(Job.of(body), pinned)["spec"]["podSets"]}


def test_a_role_asks_for_a_topology_by_kueues_annotations():
    pod_sets = on_racks()
    assert pod_sets["trainer"]["topologyRequest"] == {
        "required": "cloud.example/block",
        "podIndexLabel": "rlhf.dev/index",
    }
    assert "topologyRequest" not in pod_sets["reward"]


@pytest.mark.parametrize(
    ("annotation", "request_"),
    [
        ({"podset-preferred-topology": "rack"}, {"preferred": "rack", "podIndexLabel": "rlhf.dev/index"}),
        (
            {"podset-unconstrained-topology": "true"},
            {"unconstrained": True, "podIndexLabel": "rlhf.dev/index"},
        ),
        ({"podset-unconstrained-topology": "false"}, None),
        (
            {"podset-slice-required-topology": "rack"},
            {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 1, "podIndexLabel": "rlhf.dev/index"},
        ),
        ({}, None),
    ],
)
def test_the_kinds_of_topology_requests(annotation, request_):
    assert topology_request({f"kueue.x-k8s.io/{key}": value for key, value in annotation.items()}) == request_


IN_FULL = {
    "domainCount": 2,
    "valuesPerLevel": [{"individual": {"roots": ["b1", "b1"]}}, {"individual": {"roots": ["r1", "r2"]}}],
    "podCounts": {"individual": [2, 1]},
}
SHORTENED = {
    "domainCount": 2,
    "valuesPerLevel": [
        {"universal": "b1"},
        {"individual": {"prefix": "r", "roots": ["", ""], "suffix": "1"}},
    ],
    "podCounts": {"universal": 1},
}
SECOND = {
    "domainCount": 1,
    "valuesPerLevel": [{"individual": {"roots": ["b1"]}}, {"individual": {"prefix": "r", "roots": ["2"]}}],
    "podCounts": {"individual": [1]},
}


@pytest.mark.parametrize("slices", [[IN_FULL], [SHORTENED, SECOND]], ids=["in full", "shortened"])
def test_each_pod_is_made_for_its_domain_of_the_topology(slices):
    assigned = {
        "name": "trainer",
        "count": 3,
        "topologyAssignment": {"levels": list(RACKS), "slices": slices},
    }
    there = made(*ADMITTED, admission={"podSetAssignments": [assigned]})

    def pod(index: int, role: Role = Role.TRAINER) -> dict[str, Any]:
        labels = {"rlhf.dev/job": "job", "rlhf.dev/index": str(index)}
        return placed(
            {"metadata": {"labels": labels}, "spec": {"nodeSelector": {"zone": "a"}}}, whole(role), there, {}
        )

    racks = [pod(index)["spec"]["nodeSelector"] for index in range(3)]
    assert [rack["cloud.example/rack"] for rack in racks] == ["r1", "r1", "r2"]
    assert racks[2] == {"zone": "a", "cloud.example/block": "b1", "cloud.example/rack": "r2"}
    assert pod(0)["metadata"]["labels"]["kueue.x-k8s.io/tas"] == "true"
    assert "kueue.x-k8s.io/tas" not in pod(0, Role.REWARD)["metadata"]["labels"]
    assert pod(0, Role.REWARD)["spec"]["nodeSelector"] == {"zone": "a"}
    assert pod(3)["spec"]["nodeSelector"] == {"zone": "a"}  # more than were admitted are never made


KUEUE_READS = {
    "IsTAS": {
        f"kueue.x-k8s.io/podset-{level}-topology" for level in ("required", "preferred", "unconstrained")
    }
    | {"kueue.x-k8s.io/podset-slice-required-topology"},
    "IndexPodWorkloadSliceName": {"kueue.x-k8s.io/workload"},
}
"""Annotations of pods that Kueue reads (pkg/util/tas, pkg/controller/core/indexer of 0.17 to 0.20), by function."""


@pytest.mark.parametrize("annotation", [None, "required-topology", "slice-required-topology"])
def test_kueue_knows_the_pods_of_a_workload_and_that_their_topology_is_counted(annotation):
    """It would count other pods as foreign usage of their nodes, beside their Workload's, and move running ones."""
    notes = {f"kueue.x-k8s.io/podset-{annotation}": "rack"} if annotation else {"mine": "1"}
    labels = {"rlhf.dev/job": "job", "rlhf.dev/index": "0"}
    slices = [{"domainCount": 1, "valuesPerLevel": [{"universal": "r1"}], "podCounts": {"universal": 1}}]
    topology = {"levels": ["rack"], "slices": slices}
    assigned = [{"name": "trainer", "topologyAssignment": topology}, {"name": "reward"}]
    there = made(*ADMITTED, admission={"podSetAssignments": assigned})
    pod = {"metadata": {"labels": labels, "annotations": notes}, "spec": {}}
    trainer, reward = (
        placed(pod, whole(role), there, {})["metadata"] for role in (Role.TRAINER, Role.REWARD)
    )
    topologies = KUEUE_READS["IsTAS"]
    unasked = {} if annotation else {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}
    assert {k: v for k, v in trainer["annotations"].items() if k in topologies} == unasked or notes
    assert len(topologies & trainer["annotations"].keys()) == 1, "Kueue refuses two"
    assert topologies & reward["annotations"].keys() == topologies & notes.keys()
    for metadata, role in ((trainer, "trainer"), (reward, "reward")):
        assert metadata["annotations"]["kueue.x-k8s.io/workload"] == there["metadata"]["name"]
        assert metadata["labels"]["kueue.x-k8s.io/podset"] == role


def test_quota_is_held_for_all_generators_that_may_come():
    """Otherwise a job that scales up would have to queue again."""
    bodies = [
        World(("spec.generator.autoscale={maxReplicas: 5}", f"spec.generator.replicas={n}")).job.body
        for n in (2, 5)
    ]
    few, many = (from_cluster(body).spec for body in bodies)
    requested = workload(Job.of(bodies[0]), Pinned.make("job", few, Defaults(image="i")))
    counts = {each["name"]: each["count"] for each in requested["spec"]["podSets"]}
    assert counts == {"trainer": 1, "generator": 5, "reward": 1, "reference": 1}
    held = [{"type": c, "status": "True", "reason": "Test", "message": ""} for c in (*ADMITTED, "PodsReady")]
    requested["spec"]["queueName"] = "team"
    there = {**requested, "status": {"conditions": held}}
    for spec in (few, many):
        assert quota(job()[0], spec, there, requested["metadata"]["annotations"][CONFIG]) == "admitted"
        assert report(there, spec, ready=True, stamp=STAMP) is None, "none of it is free for others"
