"""Pods of sandboxes: the user's image as it is, with nothing of the job in it, and one for each episode."""

import re
from typing import Any

import kubernetes_validate
import pytest
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.objects.test_environments import ENVIRONMENT, policies, selects
from tests.unit.operator.cluster.objects.test_pod import EVERYTHING, env, owner, pinned, pod, role_container
from tests.unit.operator.cluster.world import World, names, stamp

from rlhf_api.contract.sandbox_server import CLAIMED
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.runtime import NamedRuntime, RuntimeSpec, merged, with_runtime
from rlhf_api.roles import Role
from rlhf_api.rules.pods.placement import cluster_problems
from rlhf_operator.cluster.act.status_writer import is_worth_writing
from rlhf_operator.cluster.decide.pod_groups import NO_CONFIG
from rlhf_operator.cluster.objects.companions import companions, owned, token_secrets
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.job.names import role_labels, token_name
from rlhf_operator.job.ports import PORT

PLAYS = "spec.environment={path: 'a:B'}"
SANDBOX = "spec.sandbox={replicas: 2, pods: {image: 'swe:1'}}"
GIVEN = (*EVERYTHING, PLAYS, SANDBOX)
FIRST, SECOND = "job-sandbox-0", "job-sandbox-1"


def test_their_objects_are_valid_for_kubernetes_1_37() -> None:
    made = companions(pinned(*GIVEN), "job-uid", "system")
    (files,) = [body for body in made if body["metadata"]["name"] == "job-sandbox-job-uid"]
    assert files["data"].keys() == {"server", "proof"}
    for body in (pod(Role.SANDBOX, *GIVEN), *made):
        kubernetes_validate.validate(owned(body, owner()), "1.37", strict=True)


def test_a_pod_has_the_users_image_as_it_is_and_nothing_of_the_job_but_its_token() -> None:
    body = pod(Role.SANDBOX, *GIVEN)
    spec, container = body["spec"], role_container(body)
    assert container["image"] == "swe:1"
    assert container["command"] == ["python3", "-I", "-S", "/rlhf"]
    assert "workingDir" not in container
    assert env(body).keys() == {"RLHF_HOST", "RLHF_PORT", "RLHF_TERMINATION_LOG", "RLHF_TOKEN"}
    assert env(body)["RLHF_TOKEN"] == {"secretKeyRef": {"name": "job-token-1-sandbox", "key": "token"}}
    assert container["envFrom"] == []
    assert {volume["name"] for volume in spec["volumes"]} == {"server", "shared-memory"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["priorityClassName"] == "high"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


def test_each_has_a_user_of_its_own_which_a_template_may_change() -> None:
    users = [pod(Role.SANDBOX, *GIVEN, index=i)["spec"]["securityContext"]["runAsUser"] for i in (0, 1)]
    assert users[1] == users[0] + 1 > 1_000_000
    root = "{spec: {securityContext: {runAsUser: 0, runAsNonRoot: false}, runtimeClassName: gvisor}}"
    body = pod(Role.SANDBOX, PLAYS, f"spec.sandbox={{pods: {{image: i, template: {root}}}}}")
    assert body["spec"]["runtimeClassName"] == "gvisor"
    assert body["spec"]["securityContext"]["runAsUser"] == 0


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (
            "{}",
            {"requests": {"ephemeral-storage": "0"}, "limits": {"memory": "2Gi", "ephemeral-storage": "4Gi"}},
        ),
        (
            "{requests: {memory: 4Gi}, limits: {ephemeral-storage: 1Gi}}",
            {"requests": {"memory": "4Gi"}, "limits": {"ephemeral-storage": "1Gi"}},
        ),
    ],
)
def test_what_it_may_take_has_limits_unless_the_manifest_has_others(
    resources: str, expected: dict[str, Any]
) -> None:
    body = pod(Role.SANDBOX, PLAYS, f"spec.sandbox={{pods: {{image: i, resources: {resources}}}}}")
    assert role_container(body)["resources"] == expected


def test_a_job_that_gets_these_roles_later_gets_their_tokens_too() -> None:
    """Its Secret of before never changes."""
    before = token_secrets(b"k", owner(), pinned(*EVERYTHING).config.spec)
    roles = (*EVERYTHING, ENVIRONMENT, SANDBOX)
    after = token_secrets(b"k", owner(), pinned(*roles).config.spec)
    assert after[: len(before)] == before
    made = {(body["metadata"]["name"], key) for body in after for key in body["stringData"]}
    for role in Role:
        body = build_pod(pinned(*roles), NewPod(role, 0, 1, resume=False), owner().uid)
        reference = env(body)["RLHF_TOKEN"]["secretKeyRef"]
        assert (reference["name"], reference["key"]) in made


def test_a_token_that_a_sandboxs_kubelet_does_not_find_is_made_again() -> None:
    world = playing()
    missing = f'secret "{token_name("job", "job-uid", Role.SANDBOX)}" not found'
    waiting = {"waiting": {"reason": NO_CONFIG, "message": missing}}
    world.pods[SECOND]["status"] = {"containerStatuses": [{"name": "role", "state": waiting}]}
    assert world.make_plan().token


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("plays", [PLAYS, ENVIRONMENT])
def test_environments_alone_reach_it_and_it_reaches_what_network_says(plays: str, *, network: bool) -> None:
    ours, *others = policies(*EVERYTHING, plays, SANDBOX, f"spec.sandbox.network={str(network).lower()}")
    labels = {role: role_labels("job", role) for role in Role}
    *of_environments, its = others
    assert [role for role in Role if selects(its["podSelector"], labels[role])] == [Role.SANDBOX]
    (rule,) = its["ingress"]
    peers = [role for role in Role if any(selects(p["podSelector"], labels[role]) for p in rule["from"])]
    assert peers == [Role.TRAINER, *([Role.ENVIRONMENT] if of_environments else [])]
    assert rule["ports"] == [{"port": PORT, "protocol": "TCP"}]
    assert its["egress"] == ([{}] if network else [])
    assert not selects(ours["podSelector"], labels[Role.SANDBOX])
    for policy in of_environments:
        ((reached,),) = [rule["to"] for rule in policy["egress"]]
        assert [role for role in Role if selects(reached["podSelector"], labels[role])] == [Role.SANDBOX]


def playing() -> World:
    """A job all of whose pods run."""
    world = World((PLAYS, SANDBOX))
    world.settle()
    return world


def sandbox_status(world: World) -> tuple[int, int]:
    assert world.status is not None
    status = world.status.roles[Role.SANDBOX]
    return status.ready, status.restarts


@pytest.mark.parametrize("code", [0, 137])
def test_a_sandbox_that_had_its_episode_is_replaced_at_once_and_never_counted(code: int) -> None:
    world = playing()
    for _ in range(20):  # far beyond any budget, and without a pause
        made = len(world.made)
        world.end(FIRST, code, CLAIMED)
        assert names(world.step(0.0)) == ([], [FIRST])
        assert names(world.step(0.0)) == ([], []), "its name is taken"
        assert len(sandboxes(world)) == 2
        world.kubelet()
        assert names(world.step(0.0)) == ([FIRST], [])
        assert len(sandboxes(world)) == 2, "never more than replicas"
        world.kubelet()
        assert len(world.made) == made + 1
    world.step()
    assert sandbox_status(world) == (2, 0)


def end_at(name: str, world: World, *, code: int, message: str, started: str, unready: str) -> None:
    """Ends a pod at the world's time; `unready`: since when it is not ready."""
    end = {"exitCode": code, "startedAt": started, "finishedAt": stamp(world.now), "message": message}
    world.end(
        *(name, code, message),
        containerStatuses=[{"name": "role", "state": {"terminated": end}}],
        conditions=[{"type": "Ready", "status": "False", "lastTransitionTime": unready}],
    )


def test_a_command_that_writes_its_own_message_and_uses_up_the_memory_counts_no_restart() -> None:
    world = playing()
    started = stamp(world.now)
    world.step(60.0)
    end_at(FIRST, world, code=137, message="not yours", started=started, unready=stamp(world.now))
    assert names(world.step(0.0)) == ([], [FIRST])
    world.kubelet()
    assert names(world.step(0.0)) == ([FIRST], [])
    assert sandbox_status(world)[1] == 0


DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 4Gi. "


@pytest.mark.parametrize(
    ("end", "status", "is_exhausted"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, {}, True),
        ({"exitCode": 137, "reason": "Error"}, {"reason": "Evicted", "message": DISK}, True),
        (
            {"exitCode": 137, "reason": "Error"},
            {"reason": "Evicted", "message": "The node had no memory."},
            False,
        ),
        ({"exitCode": 137, "reason": "Error", "message": "OOMKilled"}, {}, False),
        ({"exitCode": 0, "reason": "Completed"}, {}, False),
    ],
)
def test_the_trainer_is_told_which_ends_are_the_commands_own(
    end: dict[str, Any], status: dict[str, Any], *, is_exhausted: bool
) -> None:
    world = playing()
    ended = {"message": CLAIMED, "finishedAt": stamp(world.now), **end}
    containers = [{"name": "role", "state": {"terminated": ended}}]
    world.end(FIRST, end["exitCode"], containerStatuses=containers)
    world.pods[FIRST]["status"] |= status
    uid = world.pods[FIRST]["metadata"]["uid"]
    assert world.make_plan().members.exhausted == ((uid,) if is_exhausted else ())


@pytest.mark.parametrize("started", ["1970-01-01T00:00:00Z", ""])
def test_one_that_was_never_ready_counts(started: str) -> None:
    """The kubelet's start of a container whose program is not there is that of the epoch."""
    world = playing()
    now = stamp(world.now)
    end_at(FIRST, world, code=128, message="no python3", started=started or now, unready=now)
    world.step(60.0)
    world.step(60.0)
    assert sandbox_status(world)[1] == 1


def sandboxes(world: World) -> list[str]:
    return [name for name in world.pods if "sandbox" in name]


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (128, 'exec: "python3": executable file not found in $PATH', "python3"),
        (0, "", "sandbox-. exited with code 0; see `kubectl logs job-sandbox-.`"),
    ],
)
def test_sandboxes_that_cannot_start_end_the_job_with_the_reason(
    code: int, message: str, reason: str
) -> None:
    world = World((PLAYS, SANDBOX))
    for _ in range(60):
        world.step(20.0)
        for name in [*world.pods]:
            if name in (FIRST, SECOND) and not world.over(name):
                world.end(name, code, message)
        for name, body in [*world.pods.items()]:
            if "deletionTimestamp" in body["metadata"]:
                del world.pods[name]
    assert world.status is not None
    assert world.status.phase == "Failed"
    assert re.search(reason, world.status.message)


def test_members_are_those_that_can_be_claimed() -> None:
    world = playing()
    members = {member.name for member in world.make_plan().members.members}
    assert {"sandbox-0", "sandbox-1"} <= members
    world.pods[SECOND]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    members = {member.name for member in world.make_plan().members.members}
    assert "sandbox-0" in members
    assert "sandbox-1" not in members


def test_a_replaced_sandbox_is_no_reason_to_write_a_status() -> None:
    world = playing()
    assert world.status is not None

    def content(status: JobStatus) -> dict[str, Any]:
        return status.model_dump(mode="json", by_alias=True, exclude_none=True)

    before = content(world.status)
    world.end(FIRST, 0, CLAIMED)
    world.step(0.0)
    assert sandbox_status(world) == (1, 0)
    assert not is_worth_writing(before, content(world.status), age=1.0)
    world.end(SECOND, 0, CLAIMED)
    world.step(0.0)
    assert is_worth_writing(before, content(world.status), age=1.0), "none is left"


@pytest.mark.parametrize(
    ("overrides", "where", "message"),
    [
        (("spec.sandbox={}", PLAYS), "spec.sandbox.pods.image", "name an image with python3"),
        ((SANDBOX,), "spec.sandbox", "applies only to episodes.* spec.environment is not set"),
        (
            (PLAYS, SANDBOX, "spec.sandbox.pods.modelCache=/c"),
            "spec.sandbox.pods.modelCache",
            "is of models",
        ),
        (
            (PLAYS, SANDBOX, "spec.environment.parallel=3"),
            "spec.environment.parallel",
            "there are 2 .* got 3",
        ),
        (
            (PLAYS, SANDBOX, "spec.trainer.replicas=2", "spec.generator={sharedWithTrainer: true}"),
            *("spec.sandbox", "use generators, or one rank; got 2 ranks"),
        ),
    ],
)
def test_what_no_episode_could_have_is_refused(overrides: tuple[str, ...], where: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=rf"{where}: .*{message}"):
        job(*overrides)


def test_they_have_no_place_in_a_pod_that_processes_share() -> None:
    with pytest.raises(InvalidJob, match=r"spec\.sandbox: sandboxes are pods of their own"):
        job(PLAYS, SANDBOX, "spec.placement=shared")
    assert not [*cluster_problems(job(PLAYS, SANDBOX).spec)]


def test_a_runtime_may_name_the_image() -> None:
    runtime = RuntimeSpec.model_validate({"sandbox": {"pods": {"image": "swe:2"}}})
    own = job(PLAYS, "spec.sandbox={}", "spec.runtime={name: r}")
    assert merged(own.spec, runtime).pods_of(Role.SANDBOX).image == "swe:2"
    empty = RuntimeSpec.model_validate({"sandbox": {"pods": {"image": ""}}})
    with pytest.raises(InvalidJob, match=r"spec\.sandbox\.pods\.image: must be an image's name"):
        with_runtime(own.spec, NamedRuntime(kind="ClusterRLHFRuntime", name="r", generation=1, spec=empty))
