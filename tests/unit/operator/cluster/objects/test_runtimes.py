"""An administrator's runtime: what it adds to jobs that name it, when it takes effect, and what waits for it."""

import json
from pathlib import Path

import pytest
import yaml
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.world import TODAY, World

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.runtime import NamedRuntime, load_runtime, merged, parse_runtime, with_runtime
from rlhf_api.roles import Role
from rlhf_operator.cli import main
from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.cluster.observe.desired import Wait

EXAMPLE = Path(__file__).parents[5] / "examples" / "runtimes" / "h100.yaml"
NAMES = "spec.runtime={name: h100}"
MISSING = Wait("RuntimeNotFound", "waiting for ClusterRLHFRuntime h100: not found")


def runtime(generation: int = 1, **spec: object) -> NamedRuntime:
    metadata = {"name": "h100", "uid": "u", "generation": generation}
    kind = "ClusterRLHFRuntime"
    return parse_runtime(
        {"apiVersion": "rlhf.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    )


def image(spec, role: Role) -> dict:
    pinned = Pinned.make("job", spec, TODAY)
    return build_pod(pinned, NewPod(role, 0, attempt=1, resume=False), "t")["spec"]["containers"][0]["image"]


LAYERS = ("runtime", "runtime's role", "job", "job's role")
PLAYS = "spec.environment={path: 'a:B', replicas: 1}"


@pytest.mark.parametrize("role", [Role.TRAINER, Role.ENVIRONMENT])
@pytest.mark.parametrize("upto", range(1, 5))
def test_each_layer_wins_over_those_below(upto, role):
    layers = LAYERS[:upto]
    pods = {name: {"pods": {"image": name}} if name in layers else {} for name in LAYERS}
    made = runtime(**pods["runtime"], **{role.value: pods["runtime's role"]})
    own = yaml.safe_dump(pods["job"].get("pods", {}), default_flow_style=True).strip()
    section = yaml.safe_dump(pods["job's role"].get("pods", {}), default_flow_style=True).strip()
    given = job(NAMES, PLAYS, f"spec.pods={own}", f"spec.{role.value}.pods={section}")
    spec = merged(given.spec, made.spec)
    assert image(spec, role) == layers[-1]
    assert image(spec, Role.GENERATOR) == ("job" if upto > 2 else "runtime")


def test_maps_are_merged_lists_are_joined_and_the_jobs_environment_wins():
    made = runtime(
        env={"A": "admin", "HF_HOME": "admin"},
        pods={"nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        scheduling={"gang": "volcano", "queue": "team"},
    )
    own = "spec.pods={nodeSelector: {zone: a}, tolerations: [{key: spot, operator: Exists}]}"
    spec = merged(job(NAMES, own).spec, made.spec)
    assert spec.env == {"A": "admin", "HF_HOME": "/tmp/hf"}
    assert spec.pods.node_selector == {"gpu": "h100", "zone": "a"}
    assert [t.key for t in spec.pods.tolerations] == ["gpu", "spot"]
    assert (spec.scheduling.gang, spec.scheduling.queue) == ("volcano", "team")


def test_environments_have_of_a_runtime_what_says_where_they_run_and_what_is_theirs():
    admins = {"secrets": ["keys"], "gpu": {"count": 1}, "nodeSelector": {"gpu": "h100"}}
    made = runtime(pods=admins, environment={"pods": {"secrets": ["games"], "nodeSelector": {"cpu": "many"}}})
    pods = merged(job(NAMES, PLAYS, "spec.pods={secrets: [own]}").spec, made.spec).pods_of(Role.ENVIRONMENT)
    assert (pods.secrets, pods.gpu) == (("games",), None)
    assert pods.node_selector == {"gpu": "h100", "cpu": "many"}


def test_variables_by_the_name_of_an_earlier_release_are_told_from_pods_of_environments():
    assert runtime(environment={"A": "b"}) == runtime(env={"A": "b"})
    with pytest.raises(InvalidJob, match=r"spec\.environment: is the former name of env, which is there too"):
        runtime(environment={"A": "b"}, env={"C": "d"})


def test_a_malformed_one_is_refused_with_its_field():
    with pytest.raises(InvalidJob, match=r"spec\.pods\.imge: unknown field"):
        runtime(pods={"imge": "x"})


def test_the_example_makes_every_pod_of_a_job_that_names_it():
    example = load_runtime(EXAMPLE)
    spec = with_runtime(job(NAMES, "spec.trainer.processesPerReplica=8").spec, example)
    pinned = Pinned.make("job", spec, TODAY)
    trainer, generator = (
        build_pod(pinned, NewPod(role, 0, attempt=1, resume=False), "t")["spec"]
        for role in (Role.TRAINER, Role.GENERATOR)
    )
    assert trainer["containers"][0]["resources"]["limits"] == {
        "memory": "1Ti",
        "rdma/hca": "1",
        "nvidia.com/gpu": "8",
    }
    assert trainer["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert generator["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    for pod in (trainer, generator):
        assert pod["nodeSelector"] == {"accelerator": "h100"}
        assert pod["schedulerName"] == "volcano"


def waiting(world: World) -> tuple[str, str, str]:
    reasons = {c.type: c.reason for c in world.status.conditions}
    return world.status.phase, reasons["Suspended"], reasons["Ready"]


def test_a_job_waits_for_its_runtime_and_starts_when_it_comes():
    world = World((NAMES,), runtime=MISSING)
    todo = world.step()
    assert not todo.create
    assert todo.again == 15
    assert waiting(world) == ("Suspended", "RuntimeNotFound", "RuntimeNotFound")
    assert world.status.message == MISSING.message
    assert world.status.runtime is None
    world.runtime = runtime(3, pods={"image": "admin:1"})
    assert world.step().create
    assert world.status.runtime.generation == 3
    assert world.want.pinned.config.spec.pods.image == "admin:1"


def test_a_changed_or_deleted_runtime_changes_nothing_in_a_job_that_runs():
    world = World(
        (NAMES,),
        runtime=runtime(1, pods={"image": "admin:1"}, trainer={"pods": {"nodeSelector": {"a": "b"}}}),
    )
    world.settle()
    for now in (runtime(2, pods={"image": "admin:2"}), MISSING):
        world.runtime = now
        # As another process reads them.
        world.configs = {
            name: Pinned.read(json.loads(json.dumps(made.config_map())), TODAY)
            for name, made in world.configs.items()
        }
        todo = world.step()
        assert (todo.create, todo.delete, world.want.ignored) == ((), (), None)
        assert image(world.want.spec, Role.TRAINER) == "admin:1"
        assert world.status.runtime.generation == 1
    world.end("job-trainer-0", 1)
    world.settle()
    assert world.attempts() == {"2"}
    assert world.want.pinned.config.spec.trainer.pods.node_selector == {"a": "b"}


def test_limits_hold_for_the_outcome_and_the_job_waits():
    world = World((NAMES,), runtime=runtime(pods={"priorityClass": "high"}), limits=Limits())
    assert not world.step().create
    assert waiting(world)[1] == "RuntimeRefused"
    assert "this cluster's limits do not allow it" in world.status.message
    world.limits = Limits.model_validate_json('{"priorityClasses": ["high"]}')
    assert world.step().create


def test_gpus_that_a_runtime_gives_are_shared_only_where_pods_claim_them():
    engine = "spec.generator.engineArguments={max-num-seqs: 8}"
    plugin, claimed = runtime(pods={"gpu": {"count": 1}}), {"count": 1, "deviceClass": "gpu.nvidia.com"}
    world = World((NAMES, "spec.placement=shared", engine), runtime=plugin)
    assert not world.step().create
    assert waiting(world)[1] == "RuntimeRefused"
    assert "spec.pods.gpu: a device plugin gives a GPU to one container" in world.status.message
    world.runtime = runtime(pods={"gpu": claimed})
    assert world.step().create


def test_a_runtime_may_name_the_only_service_account_that_the_limits_allow():
    limits = Limits.model_validate_json('{"serviceAccounts": ["training"]}')
    named = runtime(pods={"template": {"spec": {"serviceAccountName": "training"}}})
    world = World((NAMES,), runtime=MISSING, limits=limits)
    world.step()
    assert waiting(world)[1] == "RuntimeNotFound"
    world.runtime = runtime()
    world.step()
    assert waiting(world)[1] == "RuntimeRefused"
    assert "serviceAccountName may be training; got 'default'" in world.status.message
    world.runtime = named
    assert world.step().create


def test_a_job_that_goes_with_no_such_runtime_waits_with_the_fields():
    world = World((NAMES,), runtime=runtime(env={"RLHF_X": "1"}))
    assert not world.step().create
    assert "spec.env.RLHF_X" in world.status.message


def test_one_machine_takes_it_from_a_file(tmp_path, capsys):
    manifest, file = tmp_path / "job.yaml", tmp_path / "runtime.yaml"
    document = json.loads(job(NAMES).model_dump_json(by_alias=True, exclude_unset=True))
    manifest.write_text(yaml.safe_dump(document))
    body = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFRuntime",
        "metadata": {"name": "h100"},
        "spec": {},
    }
    file.write_text(yaml.safe_dump(body))
    assert main(["run", str(manifest)]) == 2
    assert (
        "spec.runtime: ClusterRLHFRuntime h100 exists only on a cluster; give its manifest"
        in capsys.readouterr().err
    )
    assert main(["validate", "--no-files", str(manifest), f"--runtime={file}"]) == 2
    assert "has RLHFRuntime h100; spec.runtime names ClusterRLHFRuntime h100" in capsys.readouterr().err
    file.write_text(yaml.safe_dump({**body, "kind": "ClusterRLHFRuntime", "spec": {"env": {"RLHF_X": ""}}}))
    assert main(["validate", "--no-files", str(manifest), f"--runtime={file}"]) == 2
    assert "spec.env.RLHF_X" in capsys.readouterr().err
