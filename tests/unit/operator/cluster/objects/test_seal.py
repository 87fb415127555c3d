"""Of a ConfigMap that the operator has not written, no pod is made that the job could not have asked for."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.operator.cluster.world import World

from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.objects.pinned import DEFAULTS, UnreadableConfig
from rlhf_operator.cluster.objects.pod_volumes import START_CONFIG
from rlhf_operator.cluster.objects.seal import sealed
from rlhf_operator.cluster.observe.desired import Desired
from rlhf_operator.cluster.observe.desired_reader import DesiredReader

KEY, FORMER = b"k" * 32, b"f" * 32
SETTINGS = Settings(trainer_image="trainer:1", token_key=KEY, previous_token_key=FORMER, limits=Limits())
STRICT = Limits(images=("registry.example",))


def template(**spec: Any) -> Callable[[dict], None]:
    """Changes a ConfigMap as a user may."""

    def change(body: dict) -> None:
        content = json.loads(body["data"][START_CONFIG])
        content["spec"]["pods"] = {"template": {"spec": spec}}
        body["data"][START_CONFIG] = json.dumps(content)

    return change


def image(body: dict) -> None:
    body["data"][DEFAULTS] = json.dumps({"image": "evil.example/i"})


def read(change: Callable[[dict], None], settings: Settings = SETTINGS, key: bytes = KEY) -> Desired:
    """Reads, as another operator, a running job whose ConfigMap was changed, and then its spec."""
    world = World(defaults=settings.defaults)
    world.step()
    (pinned,) = world.configs.values()
    body = sealed(pinned.config_map(), key, world.job)
    change(body)
    world.overrides = ("spec.ppo.klCoefficient=0.5",)

    async def get(*_: object) -> dict:
        return body

    return asyncio.run(DesiredReader(settings, SimpleNamespace(get=get)).read(("ns", "job"), world.job, []))


def many_pods(body: dict) -> None:
    content = json.loads(body["data"][START_CONFIG])
    content["spec"]["generator"] |= {"replicas": 1000, "tensorParallelSize": 1000, "podsPerReplica": 1000}
    body["data"][START_CONFIG] = json.dumps(content)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (many_pods, "1000 generators of 1000 pods each"),
        (template(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "hostPath"),
        (template(hostNetwork=True), "hostNetwork"),
        (template(automountServiceAccountToken=True), "automountServiceAccountToken"),
        (image, "evil.example"),
    ],
    ids=["a million pods", "host path", "host network", "API credentials", "default image"],
)
def test_what_a_user_wrote_into_it_is_checked_as_a_spec_is(change, problem):
    settings = Settings(trainer_image="trainer:1", token_key=KEY, limits=STRICT)
    with pytest.raises(UnreadableConfig, match=rf"lacks the operator's seal: .*{problem}"):
        read(change, settings)


def test_without_limits_its_pods_get_no_credentials_either():
    with pytest.raises(UnreadableConfig, match="automountServiceAccountToken"):
        read(template(automountServiceAccountToken=True), Settings(trainer_image="trainer:1", token_key=KEY))


@pytest.mark.parametrize("key", [KEY, FORMER])
def test_what_the_operator_wrote_stays_whatever_the_limits_are_now(key):
    limits = Limits.model_validate({"images": (), "serviceAccounts": ()})
    settings = Settings(trainer_image="trainer:2", token_key=KEY, previous_token_key=FORMER, limits=limits)
    assert read(lambda _: None, settings, key).ignored


def test_an_unsealed_one_of_an_earlier_release_runs_on_within_the_limits():
    assert read(lambda body: body["metadata"].pop("annotations")).ignored


@pytest.mark.parametrize("where", ["name", "uid"])
def test_the_seal_of_another_job_or_name_is_none(where):
    world = World()
    world.step()
    (pinned,) = world.configs.values()
    other = pinned.config_map()
    job = SimpleNamespace(uid="other" if where == "uid" else "job-uid")
    other["metadata"]["name"] = "other" if where == "name" else pinned.name

    def swap(body: dict) -> None:
        template(hostPID=True)(other)
        body["data"] = other["data"]
        body["metadata"]["annotations"] = sealed(other, KEY, job)["metadata"]["annotations"]

    with pytest.raises(UnreadableConfig, match="hostPID"):
        read(swap)
