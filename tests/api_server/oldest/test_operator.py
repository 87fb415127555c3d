"""The operator against a real API server; the pods' nodes exist on paper, and a trainer that only talks."""

import json
import re
from urllib.request import urlopen

import pytest
import yaml
from tests.api_server.oldest.jobs import PODS, PPO, ROOT, ppo
from tests.support.kubernetes.kube import KubectlError, eventually
from tests.support.kubernetes.operator import Jobs, Operator, TalkingTrainer

pytestmark = pytest.mark.usefixtures("crd", "served")


@pytest.fixture
def trainer(talking: TalkingTrainer) -> TalkingTrainer:
    """As in the middle of a run; nothing was asked of it."""
    talking.status = {
        "activity": "training",
        "step": 7,
        "totalSteps": 40,
        "rewardMean": 0.51234,
        "klMean": 0.0213,
        "tokensPerSecond": 412.3,
        "weightVersion": 7,
        "staleness": 0.0,
        "stalenessMax": 1.0,
        "trainerIdle": 0.25,
        "generatorIdle": 0.125,
        "responsesContinued": 3.0,
        "importanceEffective": 0.75,
        "queue": 3,
    }
    talking.asked.clear()
    return talking


@pytest.fixture
def running(trainer: TalkingTrainer, jobs: Jobs) -> Jobs:
    """The shipped example, all of whose pods run."""
    assert trainer
    jobs.apply(PPO)
    jobs.until("ppo", "Running")
    return jobs


def test_the_shipped_example_gets_its_pods_and_its_columns(running, trainer):
    assert set(running.pods()) == PODS
    eventually(lambda: running.status("ppo")["roles"]["reward"]["ready"] == 1, "everyone is ready")
    header, row = running.kubectl("get", "rlhfjobs").splitlines()
    columns = ["STEP", "STEPS", "REWARD", "KL", "WEIGHTS", "GEN", "GENREADY", "GPUS", "RESTARTS"]
    assert header.split() == ["NAME", "PHASE", "REASON", *columns, "AGE"]
    assert row.split()[:-1] == [
        "ppo",
        "Running",
        "Running",
        "7",
        "40",
        "0.5123",
        "0.0213",
        "7",
        "1",
        "1",
        "0",
        "0",
    ]
    wide = running.kubectl("get", "rlhf", "-o", "wide").splitlines()
    columns = ["STALENESS", "OLDEST", "TRAINERIDLE", "GENIDLE", "CONTINUED", "EFFECTIVE"]
    assert wide[0].split()[-11:] == ["ALGORITHM", "CHECKPOINT", *columns, "TOKENS/S", "QUEUE", "MESSAGE"]
    assert wide[1].split()[13:20] == ["ppo", "0", "1", "0.25", "0.125", "3", "0.75"]  # without a checkpoint
    eventually(lambda: len(trainer.members) == 3, "the trainer knows who serves it")
    assert {m["name"] for m in trainer.members} == {"generator-0", "reward-0", "reference-0"}
    described = running.kubectl("describe", "rlhfjob", "ppo")
    for word in ("RolesReady", "PodsScheduled", "the trainer is running"):
        assert word in described


def test_what_belongs_to_a_job_goes_with_it(running):
    kinds = "pods,services,configmaps,secrets,networkpolicies"
    label = ("-l", "rlhf.dev/job=ppo")
    assert len(running.get(kinds, *label)["items"]) == 7
    running.kubectl("delete", "rlhfjob", "ppo")
    eventually(lambda: not running.get(kinds, *label)["items"], "nothing is left")


def test_a_drain_waits_for_trainers_where_a_budget_says_so(running, nodes):
    """The one of docs/guides/clusters/cluster.md; generators go, and what has ended holds nobody up."""
    page = (ROOT / "docs" / "guides" / "clusters" / "cluster.md").read_text()
    (budget,) = re.findall(r"```yaml\n(apiVersion: policy/.*?)```", page, flags=re.S)
    running.apply({**yaml.safe_load(budget), "apiVersion": policy_version(running)})
    eventually(lambda: running.get("pdb", "trainers")["status"]["currentHealthy"] == 1, "the trainer counts")
    with pytest.raises(KubectlError, match="disruption budget"):
        evict(running, "ppo-trainer-0")
    generator = running.pods()["ppo-generator-0"]
    evict(running, "ppo-generator-0")
    eventually(lambda: running.pods().get("ppo-generator-0") not in (None, generator), "another generator")
    nodes.end(running.namespace, "ppo-trainer-0", code=0)
    assert running.until("ppo", "Succeeded")["restarts"] == 0
    evict(running, "ppo-trainer-0")


def policy_version(jobs: Jobs) -> str:
    return "policy/v1" if "policy/v1" in jobs.kubectl("api-versions").split() else "policy/v1beta1"


def evict(jobs: Jobs, pod: str) -> None:
    """As `kubectl drain` does, without its retries."""
    body = {"apiVersion": policy_version(jobs), "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod}/eviction"
    jobs.kubectl("create", f"--raw={path}", "-f", "-", input=json.dumps(body))


def test_generators_scale(running):
    running.kubectl("scale", "rlhfjob", "ppo", "--replicas=3")
    running.until_pods(6)
    eventually(lambda: running.status("ppo").get("generatorReplicas") == 3, "the scale status")
    running.kubectl("scale", "rlhfjob", "ppo", "--replicas=1")
    assert set(running.until_pods(4)) == PODS


def test_generators_follow_the_trainer_s_wait(trainer, jobs):
    """A trainer that waits for two thirds of each step gets more of them, as `kubectl scale` would give; `apply` of a
    manifest that does not name `replicas` leaves them."""
    generator = {"autoscale": {"maxReplicas": 3, "trainerIdle": 0.4}}
    trainer.status |= {"trainerIdle": 0.66, "generatorIdle": 0.34}
    jobs.apply(ppo(generator=generator))
    jobs.until("ppo", "Running")
    eventually(lambda: jobs.status("ppo")["roles"]["generator"]["ready"] == 1, "the generator serves")

    def steps() -> bool:
        trainer.status["step"] += 1
        return len(jobs.pods()) == 6

    eventually(steps, "three generators")
    jobs.apply(ppo(generator=generator))
    assert jobs.get("rlhfjob", "ppo")["spec"]["generator"]["replicas"] == 3
    (event,) = jobs.get("events", "--field-selector=reason=Autoscaled")["items"]
    assert (
        event["message"]
        == "generators 1 -> 3: the trainer waited 66% of the last step (spec.generator.autoscale)"
    )


def test_a_suspended_job_saves_itself_has_no_pods_and_goes_on(running, trainer, nodes):
    running.patch("ppo", suspend=True)
    eventually(lambda: "/v1/stop" in trainer.asked, "the trainer is asked to stop")
    assert set(running.pods()) == PODS
    nodes.end(running.namespace, "ppo-trainer-0", 79)
    running.until("ppo", "Suspended")
    running.until_pods(0)
    running.patch("ppo", suspend=False)
    running.until_pods(4)
    pod = running.get("pod", "ppo-trainer-0")
    assert pod["metadata"]["labels"]["rlhf.dev/attempt"] == "2"
    environment = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
    assert environment["RLHF_RUN_CONFIG"] == "/etc/rlhf/resume.json"


def test_a_failed_generator_is_replaced_and_told_of(running, nodes):
    before = running.pods()
    old = before.pop("ppo-generator-0")
    nodes.end(running.namespace, "ppo-generator-0", 1, "torch.OutOfMemoryError: CUDA out of memory")
    eventually(lambda: running.pods().get("ppo-generator-0", old) != old, "a new generator")
    after = running.pods()
    del after["ppo-generator-0"]
    assert after == before
    eventually(lambda: running.status("ppo")["restarts"] == 1, "it is counted")
    listing = eventually(
        lambda: running.kubectl("get", "events", "--field-selector=reason=PodFailed"), "the event"
    )
    assert "CUDA out of memory" in listing


@pytest.mark.parametrize("change", ["-", "=helm"], ids=["removed", "changed"])
@pytest.mark.parametrize(("role", "attempt"), [("generator", 1), ("trainer", 2)])
def test_a_pod_that_the_watch_no_longer_shows_is_replaced(running, role, attempt, change):
    """To a watch with a label selector, a pod that loses the label is deleted, as of the version that it has now."""
    name, before = f"ppo-{role}-0", running.pods()
    running.kubectl("label", "--overwrite", "pod", name, f"app.kubernetes.io/managed-by{change}")
    eventually(lambda: running.pods().get(name, before[name]) != before[name], "another pod of this name")
    running.until("ppo", "Running")
    cluster = running.status("ppo")["cluster"]
    assert (cluster["attempt"], cluster.get("unmade")) == (attempt, None)
    (event,) = running.get("events", "--field-selector=reason=Relabelled")["items"]
    assert name in event["message"]


def test_success_leaves_the_trainers_log_until_its_time_is_over(running, nodes):
    running.patch("ppo", ttlSecondsAfterFinished=6)
    nodes.end(running.namespace, "ppo-trainer-0", 0)
    running.until("ppo", "Succeeded")
    assert list(running.until_pods(1)) == ["ppo-trainer-0"]
    eventually(lambda: not running.get("rlhfjobs")["items"], "its time to live is over")


BAD = [
    ({"sampling": {"maxNewTokens": 4, "minNewTokens": 5}}, "spec.sampling.minNewTokens: must not exceed"),
    ({"model": {"dtype": "float32"}}, "spec.model: needs exactly one of policy"),
    (
        {"generator": {"engineArguments": {"port": 1}}},
        "spec.generator.engineArguments.port: is set by the job",
    ),
]


@pytest.mark.parametrize(("spec", "message"), BAD, ids=[message.split(":")[0] for _, message in BAD])
def test_a_bad_job_fails_at_once_with_field_and_fix_and_gets_no_pod(jobs, spec, message):
    """On servers with CEL, `kubectl apply` is refused some of these; this one takes them all."""
    jobs.apply(ppo(**spec))
    status = jobs.until("ppo", "Failed")
    assert jobs.reason("ppo", "Failed") == "ValidationFailed"
    assert jobs.kubectl("get", "rlhfjob", "ppo", "--no-headers").split()[:3] == [
        "ppo",
        "Failed",
        "ValidationFailed",
    ]
    assert message in status["message"]
    assert not jobs.pods()
    jobs.kubectl("replace", "-f", "-", input=yaml.safe_dump(ppo(suspend=True)))
    jobs.until("ppo", "Suspended")  # a corrected job is looked at again


def test_a_changed_spec_waits_for_the_next_start(running):
    before = running.pods()
    try:
        running.patch("ppo", ppo={"klCoefficient": 0.5})
    except KubectlError:
        return  # a server with CEL refuses it
    eventually(lambda: running.reason("ppo", "SpecChanged") == "NotApplied", "the change is seen")
    assert running.pods() == before


def reconciles(served: Operator, outcome: str) -> float:
    with urlopen(f"http://127.0.0.1:{served.metrics_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    match = re.search(rf'rlhf_operator_reconcile_seconds_count{{outcome="{outcome}"}} (\S+)', text)
    return float(match[1]) if match else 0.0


def test_pods_that_the_server_refuses_are_told_of(jobs, served):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}}
    jobs.apply({**quota, "spec": {"hard": {"pods": "1"}}})
    eventually(lambda: jobs.get("resourcequota", "tight").get("status", {}).get("hard"), "the quota holds")
    jobs.apply(PPO)
    eventually(lambda: "exceeded quota" in jobs.status("ppo").get("message", ""), "the reason")
    eventually(lambda: reconciles(served, "refused"), "it is no failure of the operator")
    jobs.kubectl("delete", "resourcequota", "tight")
    jobs.until_pods(4)


def test_a_queue_of_a_cluster_without_kueue_is_told_of(jobs):
    document = ppo()
    document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    jobs.apply(document)
    needs = "needs Kueue 0.15 or later, which serves kueue.x-k8s.io/v1beta2"
    eventually(lambda: needs in json.dumps(jobs.status("ppo")), "the label needs Kueue")
    assert not jobs.pods()


def test_a_job_whose_pods_can_never_be_made_goes_on_once_it_is_corrected(jobs):
    jobs.apply(ppo(pods={"template": {"spec": {"dnsPolicy": "Nearest"}}}))
    status = jobs.until("ppo", "Failed")
    assert jobs.reason("ppo", "Failed") == "InvalidPod"
    assert 'spec.dnsPolicy: Unsupported value: "Nearest"' in status["message"]
    jobs.until_pods(0)
    jobs.kubectl("replace", "-f", "-", input=yaml.safe_dump(PPO))
    jobs.until_pods(4)
    assert jobs.status("ppo")["cluster"]["attempt"] == 1


def test_a_job_one_of_whose_pods_can_never_be_read_keeps_no_other(jobs):
    """A number where the API server wants text is another answer than a value that it does not know."""
    template = {"spec": {"nodeSelector": {"gpus": 8}}}
    jobs.apply(ppo(generator={**PPO["spec"].get("generator", {}), "pods": {"template": template}}))
    status = jobs.until("ppo", "Failed")
    assert jobs.reason("ppo", "Failed") == "InvalidPod"
    assert 'NodeSelector: ReadString: expects " or n, but found 8' in status["message"]
    jobs.until_pods(0)


def test_nothing_secret_is_told(running, trainer, served):
    eventually(lambda: trainer.members, "the trainer was talked to")
    text = served.read_log() + running.kubectl("get", "rlhfjobs,pods,configmaps,events", "-o", "yaml")
    assert trainer.tokens
    assert not any(token.removeprefix("Bearer ") in text for token in trainer.tokens)
