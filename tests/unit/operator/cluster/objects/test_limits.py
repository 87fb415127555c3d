"""Limits of what jobs may ask for, as the operator enforces them on the pods that it would make."""

import json

import pytest
import yaml
from tests.support.limits import ALLOWED, LIMITS, REFUSED, template
from tests.unit.operator.cluster.world import World, running

from rlhf_api.errors.problem import MOST
from rlhf_api.roles import Role
from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.config.settings import Settings

LIMITED = Limits.model_validate_json(json.dumps(LIMITS))


def asking(pods: dict, role: Role | None = None, **limits: object) -> World:
    where = f"spec.{role.value}.pods" if role else "spec.pods"
    override = yaml.safe_dump(pods, default_flow_style=True, width=9999).strip()
    return World((f"{where}={override}",), limits=LIMITED.model_copy(update=limits))


@pytest.mark.parametrize("pods", ALLOWED, ids=str)
def test_what_the_limits_allow_runs(pods):
    assert asking(pods).step().create


@pytest.mark.parametrize(("pods", "_word"), REFUSED, ids=str)
@pytest.mark.parametrize("role", [None, Role.GENERATOR])
def test_what_they_do_not_fails_with_the_field_before_any_pod(pods, _word, role):
    world = asking(pods, role)
    todo = world.step()
    assert (world.status.phase, todo.create) == ("Failed", ())
    assert "this cluster's limits do not allow it" in world.status.message
    assert "the generator's pod: " in world.status.message


def test_all_that_is_wrong_is_said_at_once_with_the_values_seen():
    world = asking(
        {"priorityClass": "high", "volumes": [{"name": "v", "mountPath": "/v", "hostPath": "/etc"}]}
    )
    world.step()
    assert "priorityClassName may be batch; got 'high'" in world.status.message
    assert "hostPaths has /models; got '/etc'" in world.status.message


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"volumes": [{"hostPath": {"path": "/"}}]}, "spec.volumes[0]: must be an object with a name"),
        ({"initContainers": [{"image": "x"}]}, "spec.initContainers[0]: must be an object with a name"),
        ({"volumes": "v"}, "spec.volumes: must be a list"),
    ],
    ids=str,
)
def test_a_part_of_a_template_that_has_no_name_is_said(part, message):
    world = asking(template(**part))
    world.step()
    assert world.status.phase == "Failed"
    assert message in world.status.message


@pytest.mark.parametrize(
    "part",
    [
        {"volumes": [{"name": "v", "hostPath": "/etc", "image": 3}]},
        {
            "initContainers": [
                {"name": "i", "image": "registry.example/one", "lifecycle": "all", "ports": [1]}
            ]
        },
    ],
    ids=str,
)
def test_what_only_the_api_server_can_refuse_is_left_to_it(part):
    assert asking(template(**part)).step().create


def test_a_template_that_leaves_a_forbidden_default_is_refused():
    """Where `default` is not allowed, a pod without a service account would still run as `default`."""
    world = asking({}, service_accounts=("training",))
    world.step()
    assert "serviceAccountName may be training; got 'default'" in world.status.message


def test_a_queue_of_volcano_is_one_that_the_limits_list():
    world = World(("spec.scheduling={gang: volcano, queue: theirs}",), limits=LIMITED)
    world.step()
    assert (
        "spec.scheduling.queue: this cluster's limits do not allow it: queues may be team"
        in world.status.message
    )
    assert World(("spec.scheduling={gang: volcano, queue: team}",), limits=LIMITED).step().create


def test_a_queue_is_required_where_the_limits_say_so():
    world = asking({}, require_queue=True)
    world.step()
    assert "metadata.labels['kueue.x-k8s.io/queue-name']" in world.status.message


def test_a_job_waits_while_its_label_names_a_priority_that_is_not_allowed():
    world = World(("metadata.labels={kueue.x-k8s.io/priority-class: urgent}",), limits=LIMITED)
    assert not world.step().create
    message = world.status.message
    assert "metadata.labels['kueue.x-k8s.io/priority-class']" in message
    assert "priorityClasses may be batch; got 'urgent'" in message
    world.overrides = ("metadata.labels={kueue.x-k8s.io/priority-class: batch}",)
    assert world.step().create


def test_a_job_that_runs_keeps_what_it_has_until_it_is_suspended():
    world = running()
    world.limits = LIMITED.model_copy(update={"service_accounts": ()})
    assert not world.step().delete
    assert world.status.phase == "Running"


def test_star_allows_everything_and_the_operators_image_needs_no_entry():
    lists = ("service_accounts", "images", "host_paths", "capabilities", "priority_classes")
    for name, value in (*((name, ("*",)) for name in lists), ("privileged", True), ("host_network", True)):
        allowed = LIMITED.model_copy(update={name: value})
        left = [pods for pods, _ in REFUSED if World(asking(pods).overrides, limits=allowed).step().create]
        assert left, name
    assert asking({}, images=()).step().create


@pytest.mark.parametrize("text", ["{", '{"hostPath": []}', '{"images": "x"}'])
def test_wrong_limits_end_the_operator_with_their_name(text):
    environ = {"RLHF_TOKEN_KEY": "k" * 32, "RLHF_TRAINER_IMAGE": "i", "RLHF_LIMITS": text}
    with pytest.raises(ValueError, match="RLHF_LIMITS"):
        Settings.read(environ)


def test_problems_are_bounded():
    kinds = {kind: {} for kind in ("nfs", "iscsi", "rbd", "cephfs", "glusterfs")}
    world = asking(template(volumes=[{"name": f"a{i}", **kinds} for i in range(40)]))
    world.step()
    assert world.status.message.startswith(f"{MOST + 1} problems: ")
