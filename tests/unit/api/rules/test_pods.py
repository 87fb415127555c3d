"""Merging of a role's pod settings over those of all roles."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.manifests import job

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.pods import PodSettings, combine


def settings(**fields) -> PodSettings:
    return PodSettings.model_validate_json(json.dumps(fields))


def volume(name: str, path: str, **source):
    return {"name": name, "mountPath": path, **(source or {"claim": name})}


GPU = {"count": 1, "resource": "amd.com/gpu", "memoryGigabytes": 80}
TOLERATION = {"key": "gpu", "operator": "Exists"}

# field, the job's, the role's, what comes of it
CASES = {
    "the job's stands where the role says nothing": ("image", "job:1", None, "job:1"),
    "the role's wins": ("image", "job:1", "role:1", "role:1"),
    "the role's stands alone": ("priorityClass", None, "high", "high"),
    "one that equals the default, if it was set": ("sharedMemory", "8Gi", "1Gi", "1Gi"),
    "a default that nobody set": ("sharedMemory", "8Gi", None, "8Gi"),
    "maps, key by key": (
        "nodeSelector",
        {"pool": "gpus", "zone": "a"},
        {"zone": "b", "disk": "ssd"},
        {"pool": "gpus", "zone": "b", "disk": "ssd"},
    ),
    "maps in objects": (
        "resources",
        {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
        {"requests": {"cpu": "4"}},
        {"requests": {"cpu": "4", "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
    ),
    "objects, field by field": ("gpu", GPU, {"count": 8}, {**GPU, "count": 8}),
    "an object where the job has none": ("gpu", None, GPU, GPU),
    "names, once each": ("secrets", ["s3", "hub"], ["hub", "wandb"], ["s3", "hub", "wandb"]),
    "tolerations, once each": (
        "tolerations",
        [TOLERATION, {"key": "spot", "operator": "Exists"}],
        [TOLERATION],
        [{"key": "spot", "operator": "Exists"}, TOLERATION],
    ),
    "a volume of the same name": (
        "volumes",
        [volume("data", "/data"), volume("cache", "/cache")],
        [volume("data", "/elsewhere", empty="1Gi")],
        [volume("cache", "/cache"), volume("data", "/elsewhere", empty="1Gi")],
    ),
    "a volume at the same path": (
        "volumes",
        [volume("data", "/data")],
        [volume("own", "/data")],
        [volume("own", "/data")],
    ),
    "templates, to the bottom; their lists are the role's": (
        "template",
        {"metadata": {"annotations": {"a": "1", "b": "1"}}, "spec": {"hostNetwork": True, "x": [1, 2]}},
        {"metadata": {"annotations": {"b": "2"}}, "spec": {"x": [3]}},
        {"metadata": {"annotations": {"a": "1", "b": "2"}}, "spec": {"hostNetwork": True, "x": [3]}},
    ),
}


@pytest.mark.parametrize(("field", "job", "role", "both"), CASES.values(), ids=CASES)
def test_a_role_over_the_job(field, job, role, both):
    made = combine(
        settings(**({field: job} if job is not None else {})),
        settings(**({field: role} if role is not None else {})),
    )
    assert made == settings(**{field: both})
    assert made.model_dump(exclude_unset=True) == settings(**{field: both}).model_dump(exclude_unset=True)


def test_null_is_a_field_left_out():
    """A cluster does not even store it."""
    of_all = settings(gpu=GPU, image="x")
    assert combine(of_all, settings(gpu=None, image=None)) == of_all


ANY = st.sampled_from(
    [(name, value) for name, *both in CASES.values() for value in both if value is not None]
)
SOME = st.lists(ANY, max_size=5).map(lambda fields: settings(**dict(fields)))


@given(job=SOME, role=SOME)
def test_combining_twice_changes_nothing_and_nothing_changes_nothing(job, role):
    both = combine(job, role)
    assert combine(both, role) == both
    assert combine(job, PodSettings()) == job
    assert combine(PodSettings(), role) == role


def test_a_whole_number_is_a_quantity_without_quotes() -> None:
    resources = job(
        "spec.pods.resources={requests: {cpu: 8}, limits: {cpu: '8', memory: 16Gi}}"
    ).spec.pods.resources
    assert (resources.requests, resources.limits) == ({"cpu": "8"}, {"cpu": "8", "memory": "16Gi"})


@pytest.mark.parametrize("amount", ["-1", "0.5", "true", "[]", "8 GB"])
def test_what_is_no_quantity_is_refused(amount: str) -> None:
    with pytest.raises(InvalidJob, match=r"spec\.pods\.resources\.limits\.cpu"):
        job(f"spec.pods.resources={{limits: {{cpu: {amount}}}}}")
