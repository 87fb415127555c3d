"""A job that runs goes on with the image and the configuration that it began with, whatever is upgraded or edited."""

import copy
import gc
import json
import tracemalloc
from pathlib import Path

import pytest
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.world import TODAY, World, names, reasons, running

from rlhf_api.manifest.load import load
from rlhf_api.roles import Role
from rlhf_operator.cluster.config.settings import Defaults
from rlhf_operator.cluster.decide.plan import plan
from rlhf_operator.cluster.objects.pinned import Pinned, UnreadableConfig, defaults_of_0_1
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.cluster.objects.pod_volumes import RESUME_CONFIG, START_CONFIG
from rlhf_operator.cluster.observe.desired import active_config, desired_state
from rlhf_operator.cluster.observe.observed import Observed
from rlhf_operator.job.snapshot import Job, Pod

FILES = sorted((Path(__file__).parents[5] / "examples").rglob("*.yaml"))
EXAMPLES = [file for file in FILES if "kind: RLHFJob\n" in file.read_text()]
RELEASE_0_1 = json.loads(Path(__file__).parents[1].joinpath("release-0.1.0.json").read_text())
"""A job that runs, its ConfigMap and its pods, as release 0.1.0 left them."""
NEWER = Defaults(image="trainer:2", image_pull_policy="Always", workspace_claim="elsewhere", release="2")


def pinned(*overrides: str) -> Pinned:
    return Pinned.make("job", job(*overrides).spec, TODAY)


def test_an_upgrade_of_the_operator_changes_nothing_in_a_running_job():
    world = running()
    world.defaults = NEWER
    assert names(world.step()) == ([], [])
    assert "SpecChanged" not in reasons(world)
    world.end("job-generator-0", 1)
    world.settle()
    assert world.images[-1] == ("job-generator-0", "trainer:1")
    world.end("job-trainer-0", 1)
    world.settle()
    assert world.images[-1] == ("job-trainer-0", "trainer:1")
    assert world.attempts() == {"2"}


def test_a_job_that_is_suspended_goes_on_with_what_the_operator_has_now():
    world = running()
    world.overrides = ("spec.suspend=true",)
    world.step()
    world.end("job-trainer-0", 79)
    world.settle()
    world.defaults, world.overrides, world.trainer = NEWER, (), None
    world.settle()
    assert world.images[-1][1] == "trainer:2"


def changed(made: Pinned, change) -> Pinned:
    """As another release might have written it."""
    body = made.config_map()
    content = json.loads(body["data"][START_CONFIG])
    change(content)
    for file, resume in (
        (START_CONFIG, False),
        (RESUME_CONFIG, True),
    ):  # the spec in both, as release 0.1 wrote it
        body["data"][file] = json.dumps({**content, "resume": resume})
    return Pinned.read(body, NEWER)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["spec"]["ppo"].update(ofAnotherRelease=1),
        lambda content: content.update(ofAnotherRelease=1),
        lambda content: content["spec"]["ppo"].pop("epochs"),
        lambda content: content["spec"]["ppo"].update(epochs=7),
    ],
    ids=["a newer field", "a newer field outside", "an older release without one", "another default"],
)
def test_what_another_release_wrote_stays_word_for_word_and_is_no_change_of_the_spec(change):
    world = running()
    (name,) = world.configs
    world.configs[name] = before = changed(world.configs[name], change)
    world.defaults = NEWER
    assert names(world.step()) == ([], [])
    assert "SpecChanged" not in reasons(world)
    assert not [reason for reason, _ in world.events if reason == "SpecChangeIgnored"]
    assert world.want.pinned.texts == before.texts
    assert world.want.pinned.name == name


def test_another_number_of_generators_changes_that_number_alone():
    before = changed(pinned(), lambda content: content["spec"].update(ofAnotherRelease=1))
    after = before.scaled(5)
    assert after.name == before.name
    for file in (START_CONFIG, RESUME_CONFIG):
        old, new = json.loads(before.texts[file]), json.loads(after.texts[file])
        assert new["spec"]["generator"].pop("replicas") == 5
        assert old["spec"]["generator"].pop("replicas") == 1
        assert new == old
    assert after.config.spec.generator.replicas == 5


def test_another_number_of_generators_of_a_spec_that_was_not_read_back_is_as_if_asked_for_at_once():
    assert pinned().scaled(5) == pinned("spec.generator.replicas=5")
    assert pinned().scaled(5).texts == pinned("spec.generator.replicas=5").texts


def test_what_is_kept_of_a_configuration_is_small():
    """Its ConfigMap's content is not: 9 KiB of a job whose spec is short."""
    made = [pinned()]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    made += [pinned(f"spec.ppo.epochs={epochs}") for epochs in range(2, 52)]
    gc.collect()  # what is not kept is no part of it, whenever that would have gone
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, made[-1].texts.values())) > 9 << 10
    assert (after - before) / (len(made) - 1) < 16 << 10


def test_a_changed_spec_is_named_and_waits():
    world = running()
    world.overrides = ("spec.ppo.klCoefficient=0.5", "spec.generator.replicas=2", "spec.suspend=false")
    assert names(world.step())[0] == ["job-generator-1"]
    message = next(c.message for c in world.status.conditions if c.type == "SpecChanged")
    assert message == "spec.ppo changed while the job runs; suspend and resume the job to apply that"
    assert json.loads(world.want.pinned.texts[START_CONFIG])["spec"]["ppo"]["klCoefficient"] == 0.05


@pytest.mark.parametrize(
    ("field", "section"),
    [
        ("spec.ppo.klCoefficient=0.5", "spec.ppo"),
        ("spec.env={A: b}", "spec.env"),
        ("spec.workspace={files: {a.py: A = 1}}", "spec.workspace"),
        ("spec.generator.pods.nodeSelector={gpu: h100}", "spec.generator"),
    ],
)
def test_what_is_taken_out_of_a_spec_is_named_and_waits_too(field, section):
    world = running(field)
    world.overrides = ()
    world.step()
    message = next(c.message for c in world.status.conditions if c.type == "SpecChanged")
    assert message.startswith(f"{section} changed while the job runs")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_no_example_is_changed_by_being_written_down(file):
    made = load(file)
    body = made.model_dump(mode="json", by_alias=True, exclude_unset=True)
    body["metadata"] |= {"namespace": "ns", "uid": "u"}
    again = Pinned.read(Pinned.make("job", made.spec, TODAY).config_map(), TODAY)
    assert desired_state(Job.of(body), again, TODAY).ignored is None


def test_two_configurations_of_one_name_are_not_to_be_found_by_search():
    """With a digest of 40 bits, a million allowed and a million forbidden specs contain a pair of one name, found in
    seconds."""
    digest = pinned().name.rpartition("-")[2]
    assert len(bytes.fromhex(digest)) * 8 >= 128


def test_fields_keep_their_order():
    """The digest in a configuration's name is of text: in another order every running job would seem to be edited."""
    text = pinned().config.spec.model_dump_json(by_alias=True)
    sections = ["dpo", "ppo", "grpo", "drGrpo", "rloo", "reinforcePp", "gspo", "cispo", "custom"]
    common = [
        "algorithm",
        "steps",
        "seed",
        "model",
        "data",
        "sampling",
        "replay",
        "rollout",
        "optimizer",
        "evaluation",
    ]
    common += [
        "pretraining",
        "trainer",
        "generator",
        "reward",
        "reference",
        "weights",
        "checkpoint",
        "export",
        "health",
    ]
    common += [
        "trackers",
        "env",
        "suspend",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "podRetention",
    ]
    released = [*sections, *common, "runtime", "pods", "workspace", "scheduling"]
    assert [key for key in json.loads(text) if key in released] == released


@pytest.mark.parametrize(
    "broken",
    [{}, {START_CONFIG: "{}", RESUME_CONFIG: "{}"}, {START_CONFIG: "no JSON"}, {START_CONFIG: '"text"'}],
)
def test_a_configuration_that_cannot_be_read_is_said_so(broken):
    body = pinned().config_map()
    with pytest.raises(UnreadableConfig, match=r"ConfigMap job-config-\w+: "):
        Pinned.read({**body, "data": broken}, TODAY)


def test_jobs_of_the_last_release_run_on():
    """The upgrade from 0.1.0: its ConfigMap lacks the operator's defaults, and its digest was another."""
    body, pods = RELEASE_0_1["job"], RELEASE_0_1["pods"]
    config_map = RELEASE_0_1["companions"][0]
    made = Job.of(body)
    assert made.unreadable is None
    assert active_config(made) == config_map["metadata"]["name"]
    then = defaults_of_0_1(next(pod for pod in pods if pod["metadata"]["name"] == "job-trainer-0"))
    assert then.image == "registry.example/rlhf-trainer:0.1.0"
    assert then.workspace_claim == "shared"
    running_config = Pinned.read(config_map, then)
    want = desired_state(made, running_config, NEWER)
    assert want.ignored is None
    assert want.pinned.defaults == then
    assert dict(want.pinned.config_map()["data"]).items() >= config_map["data"].items()
    again = build_pod(want.pinned, NewPod(Role.TRAINER, 0, attempt=2, resume=True), "t")
    before = next(pod for pod in pods if pod["metadata"]["name"] == "job-trainer-0")
    (new,), (old,) = again["spec"]["containers"], before["spec"]["containers"]
    python, safe, *rest = new["command"]
    assert ([python, *rest], new["image"]) == (old["command"], old["image"])
    assert safe == "-P", "which the Python of every image knows"
    todo = plan(Observed(made, want, [Pod.of(pod) for pod in pods]), World().now)
    assert names(todo) == ([], [])
    assert todo.status.phase == "Running"
    assert todo.status.cluster.attempt == 1
    assert todo.status.cluster.config == config_map["metadata"]["name"]


def test_a_generator_of_a_job_of_the_last_release_is_replaced_with_its_image():
    body = copy.deepcopy(RELEASE_0_1)
    pods = [Pod.of(pod) for pod in body["pods"] if "generator" not in pod["metadata"]["name"]]
    want = desired_state(
        Job.of(body["job"]), Pinned.read(body["companions"][0], defaults_of_0_1(body["pods"][0])), NEWER
    )
    todo = plan(Observed(Job.of(body["job"]), want, pods), World().now)
    assert names(todo)[0] == ["job-generator-0"]
    assert want.pinned.defaults.image == "registry.example/rlhf-trainer:0.1.0"


def test_what_the_last_release_wrote_is_what_its_roles_read():
    """Roles of the pinned image forbid what they do not know: nothing may be added before they start again. Fields that
    are no more stay too, as `relaySampleFn`, which nobody set."""
    config_map = RELEASE_0_1["companions"][0]
    pinned = Pinned.read(config_map, TODAY).scaled(1)
    assert pinned.texts[START_CONFIG] == config_map["data"][START_CONFIG]
    assert json.loads(pinned.texts[START_CONFIG])["spec"]["replay"]["relaySampleFn"] is None


@pytest.mark.parametrize(
    "full", [False, True], ids=["as it is written", "with defaults, as it was written before"]
)
def test_what_all_roles_pods_were_told_outlives_the_operator_that_read_it(full):
    made = pinned("spec.pods={image: 'mine:1', gpu: {count: 1}}", "spec.reward.pods={sharedMemory: 2Gi}")
    body = made.config_map()
    if full:
        body["data"] |= {
            START_CONFIG: made.config.model_dump_json(by_alias=True),
            RESUME_CONFIG: made.config.model_dump_json(by_alias=True),
        }
    again = Pinned.read(json.loads(json.dumps(body)), NEWER)
    for role in Role:
        new = NewPod(role, 0, attempt=1, resume=False)
        assert build_pod(again, new, "t") == build_pod(made, new, "t")
