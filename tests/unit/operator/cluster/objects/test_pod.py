"""The pods and what stands beside them: as the contract wants them, and as Kubernetes 1.37 takes them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.unit.api.manifests import document, job

from rlhf_api.contract.run import RunConfig, places, roles_of
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest import spec_size
from rlhf_api.roles import Role
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.objects.companions import companions, owned, token, token_secret
from rlhf_operator.cluster.objects.gangs import members
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.cluster.objects.pod_volumes import RESUME_CONFIG, START_CONFIG
from rlhf_operator.job.ports import PORT
from rlhf_operator.job.snapshot import Job

SETTINGS = Settings(trainer_image="trainer:1", token_key=b"k" * 32, workspace_claim="shared")
EVERYTHING = (
    "spec.trainer.replicas=2",
    "spec.trainer.pods.gpu={count: 1, memoryGigabytes: 80}",
    "spec.generator.pods.nodeSelector={pool: gpus}",
    "spec.pods.tolerations=[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]",
    "spec.pods.priorityClass=high",
    "spec.pods.imagePullSecrets=[registry]",
    "spec.pods.imagePullPolicy=IfNotPresent",
    "spec.pods.secrets=[s3]",
    "spec.pods.resources={requests: {cpu: '2', memory: 4Gi}, limits: {memory: 8Gi}}",
    "spec.pods.volumes=[{name: data, mountPath: /data, claim: d, readOnly: true}, {name: s, mountPath: /s, empty: 1G}]",
    "spec.pods.template.metadata={annotations: {team: rl}}",
    "spec.pods.template.spec={containers: [{name: role, env: [{name: X, value: y}]}]}",
    "spec.workspace={claim: mine, subPath: team}",
    "spec.env={OMP_WAIT_POLICY: ACTIVE}",
)


ROOT = Path(__file__).parents[5]


def pinned(*overrides: str) -> Pinned:
    return Pinned.make("job", job(*overrides).spec, SETTINGS.defaults)


def pod(role: Role, *overrides: str, index: int = 0, resume: bool = False, rank: int = 0):
    return build_pod(pinned(*overrides), NewPod(role, index, 1, resume, rank), "1")


def owner() -> Job:
    body = document()
    body["metadata"] |= {"namespace": "ns", "uid": "1-2"}
    return Job.of(body)


def role_container(body):
    return next(c for c in body["spec"]["containers"] if c["name"] == "role")


def env(body):
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in role_container(body)["env"]}


def test_a_dollar_means_on_a_cluster_what_it_means_in_rlhf_run():
    """A kubelet replaces `$(NAME)`, and makes `$` of `$$`."""
    environment = env(pod(Role.TRAINER, "spec.env={PRICE: costs $$5, HOME_OF: you are $(HOME)}"))
    assert (environment["PRICE"], environment["HOME_OF"]) == ("costs $$$$5", "you are $$(HOME)")


def test_files_that_travel_with_a_job_are_where_its_roles_look_for_them():
    """Their texts are in the ConfigMap once, which goes with the job, and in no role's configuration."""
    texts = {"rewards.py": "SCORE = 1", "rows/train.jsonl": '{"prompt": "a"}'}
    made = pinned(f"spec.workspace.files={json.dumps(texts)}")
    data = made.config_map()["data"]
    again = Pinned.read(made.config_map(), SETTINGS.defaults)
    for each in (made, again):
        body = build_pod(each, NewPod(Role.REWARD, 0, 1, resume=False), "1")
        (config,) = (volume["configMap"] for volume in body["spec"]["volumes"] if "configMap" in volume)
        mounted = {item["path"]: data[item["key"]] for item in config["items"]}
        folder = Path(env(body)["RLHF_FILES"]).relative_to("/etc/rlhf")
        assert {name: mounted[str(folder / name)] for name in texts} == texts
        assert {START_CONFIG, RESUME_CONFIG} < mounted.keys()
    assert not any(text in data[START_CONFIG] for text in texts.values())
    assert (
        pinned(f"spec.workspace.files={json.dumps({**texts, 'rewards.py': 'SCORE = 2'})}").name != made.name
    )


@pytest.mark.parametrize("gang", ["none", "kubernetes", "volcano", "coscheduling"])
@pytest.mark.parametrize("overrides", [(), EVERYTHING], ids=["plain", "everything"])
def test_everything_is_valid_for_kubernetes_1_37(overrides, gang):
    made = pinned(*overrides, f"spec.scheduling.gang={gang}")
    bodies = [pod(role, *overrides, f"spec.scheduling.gang={gang}") for role in roles_of(made.config.spec)]
    bodies += [*companions(made, "job-uid", "rlhf-system"), token_secret(b"k", owner())]
    there = members(made.config, ())
    bodies += companions(made, "job-uid", "ns", gang=there)[-1:] if gang == "kubernetes" else []
    for body in bodies:
        if body["kind"] != "PodGroup" or body["apiVersion"].startswith("scheduling.k8s.io/"):
            kubernetes_validate.validate(owned(body, owner()), "1.37", strict=True)


def test_the_template_of_the_guide_lets_a_trainer_make_sandboxes():
    """As `hostUsers`, `procMount` and seccomp let it, and no more: it has no capability and no new privileges."""
    guide = (ROOT / "docs" / "guides" / "environments.md").read_text()
    (section,) = re.findall(r"### In a pod\n.*?```yaml\n(.*?)```", guide, re.DOTALL)
    template = yaml.safe_load(section)["spec"]["trainer"]["pods"]["template"]
    body = pod(Role.TRAINER, f"spec.trainer.pods.template={json.dumps(template)}")
    kubernetes_validate.validate(body, "1.37", strict=True)
    assert body["spec"]["hostUsers"] is False
    context = role_container(body)["securityContext"]
    assert (context["procMount"], context["seccompProfile"]) == ("Unmasked", {"type": "Unconfined"})
    assert (context["capabilities"], context["allowPrivilegeEscalation"]) == ({"drop": ["ALL"]}, False)
    assert (
        "hostUsers" not in pod(Role.GENERATOR, f"spec.trainer.pods.template={json.dumps(template)}")["spec"]
    )


@pytest.mark.parametrize("role", list(Role))
def test_pods_pass_the_restricted_standard(role):
    spec, container = pod(role)["spec"], role_container(pod(role))
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": role is not Role.SANDBOX,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPath" in volume for volume in spec["volumes"])


ASKING = "containers: [{name: role, resources: {limits: {cpu: '1'}}}]"


@pytest.mark.parametrize(
    ("overrides", "resources"),
    [
        ((), {}),
        (("spec.model.parameters=1e9",), {"requests": {"memory": "1908Mi"}}),
        (
            ("spec.model.parameters=1e9", "spec.reference.pods.gpu={count: 1}"),
            {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
        ),
        (
            ("spec.model.parameters=1e9", "spec.pods.resources={requests: {cpu: '1'}}"),
            {"requests": {"cpu": "1"}},
        ),
        (
            ("spec.model.parameters=1e9", f"spec.pods.template.spec={{{ASKING}}}"),
            {"limits": {"cpu": "1"}},
        ),
    ],
    ids=["unknown", "known", "gpu", "resources", "template"],
)
def test_a_pod_on_cpus_that_asks_for_nothing_requests_the_memory_of_its_model(overrides, resources):
    assert role_container(pod(Role.REFERENCE, *overrides))["resources"] == resources
    off = SETTINGS.defaults.model_copy(update={"requests": False})
    made = Pinned.make("job", job("spec.model.parameters=1e9").spec, off, "1")
    assert role_container(build_pod(made, NewPod(Role.REFERENCE, 0, 1, False), "1"))["resources"] == {}


def test_the_temporary_directory_has_the_limit_that_the_operator_was_given():
    assert {"name": "tmp", "emptyDir": {}} in pod(Role.TRAINER)["spec"]["volumes"]
    limited = SETTINGS.defaults.model_copy(update={"tmp_size_limit": "200Gi"})
    made = build_pod(Pinned.make("job", job().spec, limited, "1"), NewPod(Role.TRAINER, 0, 1, False), "1")
    assert {"name": "tmp", "emptyDir": {"sizeLimit": "200Gi"}} in made["spec"]["volumes"]


def test_pods_have_the_operators_pull_secrets_and_their_jobs():
    everywhere = SETTINGS.defaults.model_copy(update={"image_pull_secrets": ("registry", "mirror")})
    spec = job("spec.pods.imagePullSecrets=[registry, own]").spec
    made = build_pod(Pinned.make("job", spec, everywhere, "1"), NewPod(Role.TRAINER, 0, 1, False), "1")
    assert [each["name"] for each in made["spec"]["imagePullSecrets"]] == ["registry", "mirror", "own"]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_containers_of_a_template_begin_without_privileges(kind):
    root, privileged = "securityContext: {runAsUser: 0}", "securityContext: {privileged: true}"
    containers = f"{{name: s, image: i, {root}}}, {{name: p, image: i, {privileged}}}"
    spec = pod(Role.TRAINER, f"spec.pods.template={{spec: {{{kind}: [{containers}]}}}}")["spec"]
    contexts = {container["name"]: container["securityContext"] for container in spec[kind]}
    assert contexts["s"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert contexts["p"] == {"privileged": True}, "the API server refuses one without escalation"


def test_a_large_volume_changes_its_owner_once():
    assert pod(Role.TRAINER)["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_autoscalers_leave_trainers_alone_unless_they_are_told_otherwise():
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    assert pod(Role.TRAINER)["metadata"]["annotations"][key] == "false"
    assert pod(Role.GENERATOR)["metadata"]["annotations"] == {
        "kubectl.kubernetes.io/default-container": "role"
    }
    other = f"spec.pods.template={{metadata: {{annotations: {{{key}: 'true'}}}}}}"
    assert pod(Role.TRAINER, other)["metadata"]["annotations"][key] == "true"


def test_pods_carry_no_credentials():
    body = pod(Role.TRAINER)
    assert body["spec"]["automountServiceAccountToken"] is False
    assert env(body)["RLHF_TOKEN"] == {"secretKeyRef": {"name": "job-token-1", "key": "token"}}
    assert token(b"k" * 32, owner()) not in json.dumps(body)


def test_trainers_know_their_job_by_its_uid_and_so_their_own_checkpoints():
    assert env(pod(Role.TRAINER))["RLHF_RUN"] == "1"
    assert "RLHF_RUN" not in env(pod(Role.GENERATOR))


def test_trainers_meet_at_the_first_ones_name():
    commands = [
        " ".join(role_container(pod(Role.TRAINER, "spec.trainer.replicas=2", index=i))["command"])
        for i in (0, 1)
    ]
    assert (
        "--nnodes 2 --nproc-per-node 1 --node-rank 0 --master-addr job-trainer-0 --master-port 29500"
        in commands[0]
    )
    assert "--node-rank 1 --master-addr job-trainer-0.job-rlhf --master-port 29500" in commands[1]


@pytest.mark.parametrize(
    ("overrides", "has_names"),
    [
        ((), False),
        (("spec.generator.replicas=2", "spec.reward.replicas=2"), False),
        (("spec.trainer.replicas=2",), True),
        (("spec.generator.tensorParallelSize=2", "spec.generator.podsPerReplica=2"), True),
    ],
    ids=["one of each", "servers", "trainers", "a generator of two pods"],
)
def test_names_are_made_for_jobs_whose_pods_look_each_other_up(overrides, has_names):
    """Without the headless Service no environment variable or command names a host in it."""
    made = pinned(*overrides)
    kinds = [body["kind"] for body in companions(made, "job-uid", "ns")]
    assert ("Service" in kinds) is has_names
    spec = made.config.spec
    pods = [
        pod(role, *overrides, index=index, rank=rank)
        for role in roles_of(spec)
        for index, rank in places(spec, role)
    ]
    texts = [json.dumps([each["command"], each["env"]]) for each in map(role_container, pods)]
    assert any(".job-rlhf" in text for text in texts) is has_names


def test_the_token_of_a_job_is_not_that_of_its_predecessor():
    """The garbage collector may delete the earlier Secret only after the new job exists."""
    first, second = owner(), replace(owner(), uid="3-4")
    assert token_secret(b"k", first)["metadata"]["name"] != token_secret(b"k", second)["metadata"]["name"]


def test_no_policy_of_somebody_elses_has_the_name_of_a_jobs():
    """Policies are made for every job: to look for the name would be one call more."""
    mine, other = (
        next(body for body in companions(pinned(), uid, "ns") if body["kind"] == "NetworkPolicy")
        for uid in ("0123456789", "9876543210")
    )
    assert mine["metadata"]["name"] == "job-rlhf-01234567"
    assert other["metadata"]["name"] == "job-rlhf-98765432"


def test_from_elsewhere_only_the_http_port_is_reached():
    """The stores at which ranks and weights meet take no token: their ports are for the job's own pods."""
    monitoring = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    bodies = companions(pinned(), "job-uid", "system", (monitoring,))
    (policy,) = (body["spec"] for body in bodies if body["kind"] == "NetworkPolicy")
    labels = pod(Role.TRAINER)["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    own = [{"podSelector": policy["podSelector"]}]
    for rule in policy["ingress"]:
        assert rule.get("from") == own or rule["ports"] == [{"port": PORT, "protocol": "TCP"}]
    assert policy["policyTypes"] == ["Ingress"]


def test_only_a_resumed_trainer_reads_the_other_configuration(tmp_path):
    assert env(pod(Role.TRAINER))["RLHF_RUN_CONFIG"].endswith("start.json")
    assert env(pod(Role.TRAINER, resume=True))["RLHF_RUN_CONFIG"].endswith("resume.json")
    made = pinned()
    data = companions(made, "job-uid", "ns")[0]["data"]
    for file, text in data.items():
        (tmp_path / file).write_text(text)
    start, resume = (RunConfig.read(tmp_path / file) for file in ("start.json", "resume.json"))
    assert (start.resume, resume.resume) == (False, True)
    assert start.spec == resume.spec == made.config.spec


def test_the_largest_spec_fits_into_its_config_map():
    """It may have 1 MiB. Deep lists are the worst: with indents an item of one character is a line of sixty."""
    deep: object = ["x"] * 60_000
    for _ in range(40):
        deep = [deep]
    template = json.dumps({"spec": {"deep": deep}})
    made = pinned(
        f"spec.pods.template={template}",
        f"spec.trainer.pods.template={'{spec: {note: ' + 'é' * 9_000 + '}}'}",
    )
    body = companions(made, "job-uid", "ns")[0]
    assert sum(len(text.encode()) for text in body["data"].values()) < spec_size.MOST_BYTES + (64 << 10)


def test_what_a_runtime_adds_fits_too():
    assert spec_size.MOST_COMPLETE_BYTES + spec_size.MOST_BYTES + (128 << 10) <= 1 << 20


def test_the_manifests_wishes_reach_the_pod():
    body = pod(Role.GENERATOR, *EVERYTHING)
    spec, container = body["spec"], role_container(body)
    assert spec["nodeSelector"] == {"pool": "gpus"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["priorityClassName"] == "high"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "4Gi"}
    assert body["metadata"]["annotations"]["team"] == "rl"
    assert env(body)["X"] == "y"
    assert env(body)["OMP_NUM_THREADS"] == "2"
    assert env(body)["OMP_WAIT_POLICY"] == "ACTIVE"
    assert env(pod(Role.GENERATOR))["OMP_WAIT_POLICY"] == "PASSIVE"
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    assert mounts["/workspace"]["subPath"] == "team"
    assert mounts["/data"]["readOnly"] is True
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert volumes["workspace"]["persistentVolumeClaim"] == {"claimName": "mine"}
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert role_container(pod(Role.TRAINER, *EVERYTHING))["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_a_pod_that_asks_for_no_resources_says_nothing_of_them():
    assert role_container(pod(Role.GENERATOR))["resources"] == {}


def test_gpus_of_a_device_class_are_claimed_by_a_template_of_their_role():
    overrides = (
        "spec.pods.gpu={count: 1, deviceClass: gpu.nvidia.com}",
        "spec.pods.modelCache=/workspace/hub",
        "spec.workspace.claim=mine",
        "spec.reward.pods.gpu={count: 2}",
    )
    made = pinned(*overrides)
    templates = {
        body["metadata"]["name"]: body["spec"]["spec"]["devices"]["requests"]
        for body in companions(made, "1", "ns")
        if body["kind"] == "ResourceClaimTemplate"
    }
    assert len(templates) == len(roles_of(made.config.spec))
    for role in roles_of(made.config.spec):
        spec = pod(role, *overrides)["spec"]
        (claim,) = spec["resourceClaims"]
        (request,) = templates[claim["resourceClaimTemplateName"]]
        assert request["exactly"]["deviceClassName"] == "gpu.nvidia.com"
        assert request["exactly"]["count"] == (2 if role is Role.REWARD else 1)
        assert role_container({"spec": spec})["resources"] == {"claims": [{"name": claim["name"]}]}
        assert spec["initContainers"][0]["resources"] == {}
    other = pod(Role.REWARD, "spec.pods.gpu={count: 1, deviceClass: mig.nvidia.com}")["spec"]
    assert other["resourceClaims"][0]["resourceClaimTemplateName"] not in templates, "one cannot be changed"


def test_a_template_cannot_name_a_container_as_a_process():
    with pytest.raises(InvalidJob, match=r"containers\[0\].name: is the name of a process of the job"):
        pinned("spec.pods.template.spec={containers: [{name: reward-0, image: s}]}")
    pinned("spec.pods.template.spec={containers: [{name: reward-x, image: s}]}")


def test_a_template_cannot_take_the_pod_away_from_its_job():
    with pytest.raises(InvalidJob, match="is the operator's to set"):
        pod(Role.TRAINER, "spec.pods.template={metadata: {labels: {rlhf.dev/role: reward}}}")


def test_a_gang_has_all_pods_of_the_job():
    made = pinned("spec.generator.replicas=3", "spec.scheduling={gang: volcano, queue: research}")
    group = companions(made, "job-uid", "ns", gang=members(made.config, ()))[-1]
    assert group["spec"] == {"minMember": 6, "queue": "research"}, "nothing that its pods do not ask for"
    body = pod(Role.REWARD, "spec.scheduling.gang=volcano")
    assert body["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
    assert body["spec"]["schedulerName"] == "volcano"
    body = pod(Role.REWARD, "spec.scheduling.gang=coscheduling")
    assert body["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "job"


def test_a_gang_of_kubernetes_itself_has_a_group_that_its_pods_name():
    settings = (
        "spec.generator.replicas=3",
        "spec.scheduling.gang=kubernetes",
        "spec.pods.priorityClass=high",
    )
    made = pinned(*settings)
    group = companions(made, "job-uid", "ns", gang=members(made.config, ()))[-1]
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 6}}, "priorityClassName": "high"}
    spec = pod(Role.REWARD, *settings)["spec"]
    assert (spec["schedulingGroup"], "schedulerName" in spec) == ({"podGroupName": "job"}, False)


@pytest.mark.parametrize("again", [False, True], ids=["whole", "trainers that start again"])
def test_volcano_is_told_the_priority_of_a_group_and_what_its_pods_need_together(again):
    """It orders and preempts groups by it, and lets none in for which there is no room."""
    made = pinned(
        "spec.scheduling.gang=volcano",
        "spec.generator.replicas=3",
        "spec.reward.pods.priorityClass=high",
        "spec.pods.resources={requests: {cpu: 500m, memory: 2Gi}, limits: {memory: 4Gi}}",
        "spec.generator.pods.gpu={count: 1}",
        "spec.generator.pods.resources={requests: {cpu: 1500m}}",
    )
    there = members(made.config, ())
    gang = {**there, Role.GENERATOR: 1, Role.REWARD: 0} if again else there
    spec = companions(made, "job-uid", "ns", gang=gang)[-1]["spec"]
    all_resources = {"cpu": "6", "memory": str(6 * 2**31), "nvidia.com/gpu": "3"}
    fewer = {"cpu": "2500m", "memory": str(3 * 2**31), "nvidia.com/gpu": "1"}
    assert spec == {
        "minMember": 3 if again else 6,
        "priorityClassName": "high",
        "minResources": fewer if again else all_resources,
    }
    other = pinned("spec.scheduling.gang=coscheduling", "spec.pods.priorityClass=high")
    assert companions(other, "job-uid", "ns", gang=members(other.config, ()))[-1]["spec"] == {"minMember": 4}


def test_the_configuration_is_another_one_for_every_change_but_the_number_of_generators():
    name = pinned().name
    assert pinned("spec.generator.replicas=5").name == name
    assert pinned("spec.suspend=true").name == name
    assert pinned("spec.ppo.klCoefficient=0.5").name != name
    assert len(name) <= 63


def test_the_token_is_the_jobs_own():
    first = owner()
    body = document()
    body["metadata"] |= {"namespace": "ns", "uid": "3-4"}
    assert token(b"k" * 32, first) != token(b"k" * 32, Job.of(body))
    assert token(b"k" * 32, first) == token(b"k" * 32, owner())
