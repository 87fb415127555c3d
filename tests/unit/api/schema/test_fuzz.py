"""Generated manifests: each is accepted, or refused with the field; nothing else is raised."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from tests.unit.api.manifests import document
from tests.unit.api.schema.shapes import JSON, manifests

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import from_cluster, parse

GARBAGE = (
    JSON
    | st.sampled_from(
        [2**63, -(10**30), 10**400, float("inf"), "\ud800", "a\0b", {"\udfff": 1}, [[[]]], {1: 2}]
    )
    | st.just({"$patch": "delete"})
)
METADATA = {
    "uid": "1b4c", "resourceVersion": "7", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z",
    "managedFields": [{"manager": "kubectl", "operation": "Apply"}], "finalizers": ["x"],
    "ownerReferences": [{"kind": "CronJob"}], "deletionTimestamp": None,
}  # fmt: skip


def outcome(manifest: Any) -> RLHFJob | None:
    try:
        return parse(manifest)
    except InvalidJob as error:
        for problem in error.problems:
            assert problem.where
            assert problem.message
            str(problem).encode()  # can be logged, printed and sent
            assert "\n" not in str(problem)
            assert len(str(problem)) < 2000
        return None


@settings(max_examples=100)
@given(manifests())
@example(document("spec.reward.clip=[-1.0e+20, 1.0]"))
def test_drawn_from_the_schema(manifest) -> None:
    """A server hands it back with metadata of its own, a status, and whole floats as integers, also beyond 64 bits."""
    job = outcome(manifest)
    stored = json.loads(json.dumps(manifest), parse_float=lambda text: whole(float(text)))
    body = {**stored, "metadata": {**stored["metadata"], **METADATA}, "status": {"phase": "Running"}}
    if job is not None:
        assert from_cluster(body) == job
    else:
        with pytest.raises(InvalidJob):
            from_cluster(body)


def whole(number: float) -> float | int:
    return int(number) if number.is_integer() and abs(number) < 1e21 else number


def places(node: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [*([above] if above else []), *(p for key, value in inner for p in places(value, (*above, key)))]


@settings(max_examples=120, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), manifests())
def test_with_garbage_in_places(data, manifest) -> None:
    manifest = copy.deepcopy(manifest)  # what strategies draw is shared
    for _ in range(data.draw(st.integers(1, 2))):
        where = data.draw(st.sampled_from(places(manifest)))
        node = manifest
        for key in where[:-1]:
            node = node[key]
        value = copy.deepcopy(data.draw(GARBAGE))
        if isinstance(node, dict) and data.draw(st.booleans()):
            node[data.draw(st.text(max_size=5))] = value
        else:
            node[where[-1]] = value
    outcome(manifest)


@pytest.mark.parametrize(
    "body", [{}, {"metadata": None}, {"metadata": {"name": 3}, "spec": None}, document()["spec"]]
)
def test_objects_that_are_no_jobs(body) -> None:
    with pytest.raises(InvalidJob):
        from_cluster(body)
