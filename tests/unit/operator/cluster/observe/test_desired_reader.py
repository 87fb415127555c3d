"""A job's configuration is checked once for each change of its spec, and those that were used last are remembered."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.unit.operator.cluster.world import World

from rlhf_api.manifest.spec_size import size
from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.objects.pinned import UnreadableConfig
from rlhf_operator.cluster.observe import desired, desired_reader
from rlhf_operator.cluster.observe.desired import Desired
from rlhf_operator.cluster.observe.desired_reader import DesiredReader
from rlhf_operator.job.snapshot import Pod
from rlhf_operator.job.trimmed import trim
from rlhf_operator.kube.api_error import ApiError

SETTINGS = Settings(trainer_image="trainer:1", token_key=b"k" * 32)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs whose specs were checked."""
    names, check = list[str](), desired.runnable

    def noted(body):
        names.append(body["metadata"]["name"])
        return check(body)

    monkeypatch.setattr(desired, "runnable", noted)
    monkeypatch.setattr(desired_reader, "from_cluster", noted)
    return names


def read(reader: DesiredReader, world: World, key: str = "job", pods: Sequence[Pod] = ()) -> Desired:
    return asyncio.run(reader.read(("ns", key), world.job, [*pods]))


def reader(world: World, settings: Settings = SETTINGS) -> DesiredReader:
    async def get(kind: str, _namespace: str, name: str) -> dict:
        if name not in world.configs:
            raise ApiError(404, "NotFound", f"{kind} {name} not found", kind=kind)
        return world.configs[name].config_map()

    return DesiredReader(settings, SimpleNamespace(get=get))


def test_a_start_checks_the_spec_once(checked):
    world = World(defaults=SETTINGS.defaults)
    made = reader(world)
    read(made, world)
    world.step()
    assert world.status.cluster.config
    checked.clear()
    want = read(made, world)
    assert checked == []
    assert want == read(reader(world), world)  # as another operator reads it


def test_a_changed_spec_is_checked_again(checked):
    world = World(defaults=SETTINGS.defaults)
    made = reader(world)
    read(made, world)
    world.step()
    world.overrides = ("spec.steps=7",)
    checked.clear()
    assert "spec.steps" in str(read(made, world).ignored)
    assert checked


def test_a_label_that_the_limits_refuse_is_noticed_at_the_same_generation():
    world = World()
    made = DesiredReader(replace(SETTINGS, limits=Limits()), SimpleNamespace())
    assert read(made, world).waits is None
    world.generation -= 1  # the world counts a change of labels
    world.overrides = ("metadata.labels={kueue.x-k8s.io/priority-class: urgent}",)
    waits = read(made, world).waits
    assert waits is not None
    assert waits.reason == "PriorityRefused"


def test_only_the_newest_are_remembered(checked, monkeypatch):
    monkeypatch.setattr(desired_reader, "_REMEMBERED", 2)
    world = World()
    made = reader(world)
    for key in ("a", "b", "a", "c"):
        read(made, world, key)
    checked.clear()
    read(made, world, "a")
    assert checked == []
    read(made, world, "b")
    assert len(checked) == 1


def test_as_many_bytes_of_specs_are_remembered_as_memory_allows(checked, monkeypatch):
    world = World()
    monkeypatch.setattr(desired_reader, "_REMEMBERED_BYTES", 2 * size(world.job.body["spec"]))
    made = reader(world)
    for key in ("a", "b", "c"):
        read(made, world, key)
    checked.clear()
    for key in ("b", "c"):
        read(made, world, key)
    assert checked == []
    read(made, world, "a")
    assert len(checked) == 1


def test_a_large_spec_is_checked_in_a_thread(monkeypatch):
    names, check = list[str](), desired.runnable

    def noted(body):
        names.append(threading.current_thread().name)
        return check(body)

    monkeypatch.setattr(desired, "runnable", noted)
    world = World()
    read(reader(world), world)
    world.overrides = (f"spec.pods.template={{spec: {{note: {'x' * 20_000}}}}}",)
    read(reader(world), world)
    first, second = names
    assert first == threading.current_thread().name
    assert second.startswith("checks")


def test_a_running_job_whose_configuration_is_gone_gets_no_other():
    """It would get pods of today's image beside those that run; of the same release and spec it is made again."""
    world = World(defaults=SETTINGS.defaults)
    world.settle()
    pods = [Pod.of(trim(body)) for body in world.pods.values()]
    before, upgraded = world.status.cluster.config, replace(SETTINGS, trainer_image="trainer:2")
    world.configs.clear()
    assert read(reader(world), world, pods=pods).pinned.name == before
    with pytest.raises(
        UnreadableConfig, match=f"ConfigMap {before} of its pods is gone: restore it, or suspend"
    ):
        read(reader(world, upgraded), world, pods=pods)
    ending = [replace(pod, deletion_deadline=1.0) for pod in pods]
    assert read(reader(world, upgraded), world, pods=ending).pinned.name != before
    world.overrides = ("spec.suspend=true",)
    assert read(reader(world, upgraded), world, pods=pods).spec.suspend
