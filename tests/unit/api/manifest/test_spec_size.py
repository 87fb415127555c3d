"""A spec has a largest size, which a laptop, the webhook and the operator tell in the same words."""

import json

import pytest
from tests.unit.api.manifests import document

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest import spec_size
from rlhf_api.manifest.load import from_cluster, parse
from rlhf_api.manifest.runtime import parse_runtime
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.serve.webhook import review
from rlhf_operator.job.trimmed import trim


def large(most: int, **metadata: object) -> dict:
    """A job whose spec has this many bytes."""
    body = document()
    body["metadata"] |= metadata
    body["spec"]["pods"] = {"template": {"spec": {"note": ""}}}
    body["spec"]["pods"]["template"]["spec"]["note"] = "x" * (most - spec_size.size(body["spec"]))
    return body


def problems(body: dict) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        parse(body)
    return [str(problem) for problem in caught.value.problems]


def test_one_byte_too_many_is_refused_in_the_same_words_everywhere() -> None:
    parse(large(spec_size.MOST_BYTES))
    body = large(spec_size.MOST_BYTES + 1)
    (message,) = problems(body)
    assert message.startswith("spec: must have at most 262,144 bytes as JSON; got 262,145; put ")
    stored = body | {"metadata": {**body["metadata"], "namespace": "ns", "uid": "u", "resourceVersion": "1"}}
    answer = review({"request": {"uid": "1", "object": stored}}, Settings("image", b"k" * 32))["response"]
    assert (answer["allowed"], answer["status"]["message"]) == (False, message)
    with pytest.raises(InvalidJob) as caught:
        from_cluster(trim(stored))
    assert str(caught.value) == message


def test_of_an_object_that_is_too_large_what_ends_it_is_kept_and_nothing_that_grows() -> None:
    many = {f"a/{i}": "x" * 50 for i in range(2_000)}
    body = large(1_400_000, namespace="ns", uid="u", resourceVersion="1", generation=3)
    body["metadata"] |= {"labels": {**many, "kueue.x-k8s.io/queue-name": "team"}, "annotations": many}
    body["metadata"] |= {"finalizers": [*many], "managedFields": [{"fieldsV1": many}]}
    body["spec"] |= {"suspend": True, "ttlSecondsAfterFinished": 60}
    trimmed = trim(body)
    assert trimmed["spec"] == {"suspend": True, "ttlSecondsAfterFinished": 60}
    assert trimmed["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    assert len(json.dumps(trimmed)) < 4_000
    assert trim(trimmed) == trimmed


def test_a_list_whose_items_defaults_make_large_is_refused_with_that_size(monkeypatch) -> None:
    body = document()
    small = len(parse(body).spec.model_dump_json(by_alias=True))
    monkeypatch.setattr(spec_size, "MOST_COMPLETE_BYTES", small)
    parse(body)
    body["spec"]["env"] = {"A": "x" * 50}
    assert any("with all its defaults; got" in message for message in problems(body))


def test_a_runtime_is_bounded_too() -> None:
    body = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFRuntime", "metadata": {"name": "r"}}
    body["spec"] = {"pods": {"template": {"spec": {"note": "x" * spec_size.MOST_BYTES}}}}
    with pytest.raises(InvalidJob, match="spec: must have at most 262,144 bytes"):
        parse_runtime(body)


def test_what_json_cannot_hold_is_told_by_its_own_problem() -> None:
    endless: dict = {}
    endless["a"] = endless
    body = document()
    body["spec"]["pods"] = {"template": endless}
    assert "contains itself" in problems(body)[0]
