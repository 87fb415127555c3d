"""Pods of several teachers: each asks for what its own model needs, in the queue and beside the job too."""

from tests.unit.api.manifests import document
from tests.unit.api.rules.test_teachers import LARGE, SMALL, TAUGHT

from rlhf_api.manifest.load import parse
from rlhf_api.roles import Role
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.decide.usage import count_gpus
from rlhf_operator.cluster.objects.companions import companions
from rlhf_operator.cluster.objects.kueue import workload
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.placement import placed
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.cluster.objects.pod_sets import pod_sets, set_of, too_many_sets
from rlhf_operator.cluster.observe.desired import Wait, desired_state
from rlhf_operator.job.snapshot import Job, Pod

F = Role.REFERENCE
DEFAULTS = Settings(trainer_image="trainer:1", token_key=b"k" * 32, workspace_claim="shared").defaults
CLAIMED = "gpu: {count: 4, deviceClass: gpu.nvidia.com, memoryGigabytes: 80}"


def made(*overrides: str) -> tuple[Job, Pinned]:
    body = document(*TAUGHT, *overrides)
    body["metadata"] |= {"namespace": "ns", "uid": "1-2", "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    return Job.of(body), Pinned.make("job", parse(document(*TAUGHT, *overrides)).spec, DEFAULTS)


def gpus(pinned: Pinned, index: int) -> str:
    body = build_pod(pinned, NewPod(F, index, 1, resume=False), "1")
    return body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]


def test_a_pod_asks_for_its_teachers_gpus_and_nodes():
    _, pinned = made()
    assert [gpus(pinned, index) for index in range(3)] == ["1", "1", "4"]
    selectors = [
        build_pod(pinned, NewPod(F, i, 1, resume=False), "1")["spec"].get("nodeSelector") for i in range(3)
    ]
    assert selectors == [None, None, {"gpu": "h100"}]


def test_a_running_jobs_configuration_makes_the_same_pods():
    _, pinned = made("spec.reference.pods={priorityClass: high, sharedMemory: 4Gi}")
    again = Pinned.read(pinned.config_map(), DEFAULTS)
    for index in range(3):
        new = NewPod(F, index, 1, resume=False)
        assert build_pod(again, new, "1") == build_pod(pinned, new, "1")
        assert build_pod(again, new, "1")["spec"]["priorityClassName"] == "high"


def test_a_queue_is_asked_for_a_set_of_pods_of_each_kind():
    job, pinned = made()
    sets = workload(job, pinned)["spec"]["podSets"]
    assert [(each["name"], each["count"]) for each in sets] == [
        ("trainer", 1),
        ("generator", 1),
        ("reference-0", 2),
        ("reference-1", 1),
    ]
    limits = [each["template"]["spec"]["containers"][0]["resources"]["limits"] for each in sets]
    assert [each["nvidia.com/gpu"] for each in limits] == ["1", "1", "1", "4"]


def test_teachers_whose_pods_are_alike_are_one_set():
    _, pinned = made(f"spec.distillation.teachers=[{SMALL}, {{name: large, model: b, replicas: 3}}]")
    assert [(each.name, each.first, each.count) for each in pod_sets(pinned.config.spec)][-1] == (
        "reference",
        0,
        5,
    )


def test_a_job_with_more_kinds_of_pods_than_kueue_takes_is_told():
    sources = ", ".join(f"{{path: {i}.jsonl, teacher: t{i}}}" for i in range(7))
    teachers = ", ".join(f"{{name: t{i}, model: m, pods: {{nodeSelector: {{gpu: g{i}}}}}}}" for i in range(7))
    spec = f"spec.distillation={{minibatchSize: 8, teachers: [{teachers}]}}"
    job, pinned = made(spec, f"spec.data={{promptsPerStep: 8, sources: [{sources}]}}")
    problem = too_many_sets(pinned.config.spec, job.queue)
    assert problem is not None
    assert (
        "at most 8 sets of pods, and this job's pods are of 9 kinds; let teachers whose pods"
        in problem.message
    )
    assert too_many_sets(pinned.config.spec, None) is None
    assert desired_state(job, None, DEFAULTS).waits == Wait("TooManyPodSets", str(problem))


def test_each_pod_gets_the_flavor_of_its_own_set():
    job, pinned = made()
    flavors = {name: {"spec": {"nodeLabels": {"pool": name}}} for name in ("small-gpus", "large-gpus")}
    admission = {
        "podSetAssignments": [
            {"name": "reference-0", "flavors": {"nvidia.com/gpu": "small-gpus"}},
            {"name": "reference-1", "flavors": {"nvidia.com/gpu": "large-gpus"}},
        ]
    }
    admitted = {**workload(job, pinned), "status": {"admission": admission}}
    pools = []
    for index in range(3):
        body = build_pod(pinned, NewPod(F, index, 1, resume=False), "1")
        own = set_of(pinned.config.spec, F, index)
        pools.append(placed(body, own, admitted, flavors)["spec"]["nodeSelector"]["pool"])
    assert pools == ["small-gpus", "small-gpus", "large-gpus"]


def test_claims_and_a_gang_count_each_teachers_own():
    claimed = LARGE.replace("gpu: {count: 4, memoryGigabytes: 80}", CLAIMED)
    _, pinned = made(f"spec.distillation.teachers=[{SMALL}, {claimed}]", "spec.scheduling={gang: volcano}")
    bodies = companions(pinned, "1", "operators", gang={Role.TRAINER: 1, F: 3})
    (template,) = [body for body in bodies if body["kind"] == "ResourceClaimTemplate"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 4
    (group,) = [body for body in bodies if body["kind"] == "PodGroup"]
    assert group["spec"]["minResources"]["nvidia.com/gpu"] == "3", "of the trainer and of two small teachers"
    pod = build_pod(pinned, NewPod(F, 2, 1, resume=False), "1")
    name = template["metadata"]["name"]
    assert [claim["resourceClaimTemplateName"] for claim in pod["spec"]["resourceClaims"]] == [name]


def test_usage_counts_the_gpus_that_each_teacher_claims():
    claimed = LARGE.replace("gpu: {count: 4, memoryGigabytes: 80}", CLAIMED)
    _, pinned = made(f"spec.distillation.teachers=[{SMALL}, {claimed}]")
    large = Pod(*("job-reference-2", "1", F, 2, 1, "10.0.0.1"), started=0.0, up=True, ready=True, node="n")
    assert count_gpus([large], pinned.config.spec, {}) == {"gpu.nvidia.com": 4}
