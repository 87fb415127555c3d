"""A selftest on a cluster: its decisions, its job and the results that it reads; tests/cluster/jobs/test_selftest.py
runs it."""

import pytest
from tests.support.rlhf import ROOT

from rlhf_api.contract.report import CheckpointStatus
from rlhf_api.contract.status import JobStatus, RoleStatus
from rlhf_api.manifest.load import load
from rlhf_api.roles import Role
from rlhf_operator.cluster.config.settings import Defaults
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.selftest.cluster_command import trial_name
from rlhf_operator.selftest.derived import as_arguments, first_half, on_cluster
from rlhf_operator.selftest.left import RunResults, from_lines, to_lines
from rlhf_operator.selftest.reader_pod import keeps_files, reader_pod
from rlhf_operator.selftest.watch import Stop, Watch

PPO = ROOT / "examples" / "sentiment" / "ppo.yaml"


def status(saved: int, *, ready: int = 1) -> JobStatus:
    return JobStatus(
        phase="Running",
        total_steps=100,
        roles={Role.TRAINER: RoleStatus(desired=1, ready=ready)},
        last_checkpoint=CheckpointStatus(step=saved, time="", uri=""),
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_roles_are_killed_one_after_the_other_each_once_the_last_is_back():
    clock = Clock()
    watch = Watch(victims=[Role.REWARD, Role.TRAINER], first=2, patience=100, clock=clock)
    watch.step(1)
    assert watch.decide(status(1), again=False) is None, "there is no checkpoint to compare with yet"
    watch.step(2)
    assert watch.decide(status(2, ready=0), again=False) is None, "not all are ready"
    assert watch.decide(status(2), again=False) is Role.REWARD
    watch.step(3)  # it was under way
    assert watch.decide(status(3), again=False) is None, "the status may be of before the kill"
    assert watch.decide(status(3), again=True) is None
    assert watch.kills[0].seconds is None
    clock.now = 7.0
    watch.step(4)
    assert (watch.kills[0].step, watch.kills[0].seconds) == (2, 7.0)
    assert watch.decide(status(4), again=False) is Role.TRAINER
    assert watch.decide(status(4), again=True) is None
    watch.step(5)
    assert isinstance(watch.decide(status(5), again=False), Stop)
    assert (watch.stopped, watch.failed) == (True, "")
    assert watch.decide(status(5), again=False) is None, "once"


@pytest.mark.parametrize(
    ("kills", "reason"), [(False, "no step within 100 s"), (True, "no step within 100 s of the kill")]
)
def test_a_run_that_makes_no_step_is_stopped(kills, reason):
    clock = Clock()
    watch = Watch(victims=[Role.TRAINER], first=2, patience=100, clock=clock)
    if kills:
        watch.step(2)
        watch.decide(status(2), again=False)
    clock.now = 99
    assert watch.decide(None, again=False) is None
    clock.now = 101
    assert watch.decide(None if not kills else status(2), again=False) == Stop(reason)
    assert watch.failed == reason


def test_time_in_a_queue_is_time_without_a_step():
    clock = Clock()
    watch = Watch(victims=[Role.TRAINER], first=2, patience=100, clock=clock)
    queued = status(2).model_copy(update={"phase": "Suspended"})
    watch.step(2)
    assert watch.decide(queued, again=False) is None, "nothing to kill"
    clock.now = 101
    assert isinstance(watch.decide(queued, again=False), Stop)


def test_its_job_is_the_users_under_another_name_and_ends_by_itself():
    own = ("generator.autoscale={minReplicas: 2, maxReplicas: 8}", "suspend=true", "runtime={name: gpus}")
    job = load(PPO, own)
    settings = {**first_half(job.spec), **on_cluster(job.spec, "ppo-selftest-12ab", 3600.0)}
    small = load(PPO, [*own, *as_arguments(settings)])
    assert small.metadata.name == "ppo-selftest-12ab"
    assert (small.spec.generator.autoscale, small.spec.generator.replicas) == (None, 2)
    assert small.spec.suspend is False
    assert small.spec.active_deadline_seconds == small.spec.ttl_seconds_after_finished == 3600
    assert small.spec.runtime == job.spec.runtime
    assert small.spec.pods == job.spec.pods


def test_its_name_fits_whatever_the_jobs_is():
    assert trial_name("ppo", "12ab") == "ppo-selftest-12ab"
    longest = trial_name("a" * 25 + "-" + "b" * 14, "12ab")
    assert longest == "a" * 25 + "-selftest-12ab"
    assert load(PPO, [f"metadata.name={trial_name('c' * 40, '12ab')}"])


def trainer(*overrides: str) -> dict:
    """Its pod as an API server would have it."""
    pinned = Pinned.make("ppo", load(PPO, overrides).spec, Defaults(image="trainer:1"))
    made = build_pod(pinned, NewPod(Role.TRAINER, 0, attempt=1, resume=False), "u")
    made["metadata"]["namespace"] = "team"
    made["spec"]["nodeName"] = "node1"
    return made


def test_the_reader_has_what_the_trainer_could_read_and_no_gpu():
    own = trainer(
        *(
            "workspace.claim=shared",
            "pods.secrets=[s3]",
            "pods.gpu={count: 1}",
            "pods.modelCache=/workspace/m",
        ),
        "pods.resources={requests: {cpu: '32', memory: 512Gi}, limits: {memory: 512Gi, rdma/hca: '1'}}",
        "pods.template={spec: {serviceAccountName: reads-buckets, nodeSelector: {pool: gpu}}}",
    )
    pod = reader_pod(own, "ppo-reader", ["python3"])
    assert pod["metadata"] == {"name": "ppo-reader", "namespace": "team"}, "no label of the job"
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["restartPolicy"] == "Never"
    assert (spec["serviceAccountName"], spec["nodeSelector"]) == ("reads-buckets", {"pool": "gpu"})
    assert spec["securityContext"] == own["spec"]["securityContext"]
    assert not spec.keys() & {"nodeName", "hostname", "subdomain", "initContainers"}
    assert (container["image"], container["envFrom"]) == ("trainer:1", [{"secretRef": {"name": "s3"}}])
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "4Gi"},
        "limits": {"memory": "512Gi"},
    }
    assert "RLHF_TOKEN" not in {each["name"] for each in container["env"]}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in spec["volumes"]} == {"tmp", "shared-memory", "workspace"}
    assert keeps_files(own)
    assert not keeps_files(trainer())


def test_a_report_is_heard_as_it_was_told_or_not_at_all():
    left = RunResults([{"step": 1, "loss": 0.5}], [(2, {"policy/a": "1"}), (5, {})], {"position": 64})
    lines = [*to_lines(left)]
    assert from_lines(lines) == left
    with pytest.raises(ValueError, match="not whole"):
        from_lines(lines[:-1])
    assert from_lines(to_lines(RunResults())) == RunResults()
