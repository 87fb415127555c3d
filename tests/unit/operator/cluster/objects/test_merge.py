"""Pod templates merge as kubectl's strategic patches do."""

import pytest

from rlhf_operator.cluster.objects.merge import merge

CONTAINER = {"name": "role", "image": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
BASE = {"spec": {"containers": [CONTAINER], "tolerations": [{"key": "a"}], "nodeSelector": {"x": "1"}}}

TABLE = [
    ("a field is set", {"spec": {"hostNetwork": True}}, lambda m: m["spec"]["hostNetwork"] is True),
    (
        "maps are merged",
        {"spec": {"nodeSelector": {"y": "2"}}},
        lambda m: m["spec"]["nodeSelector"] == {"x": "1", "y": "2"},
    ),
    (
        "containers by name",
        {"spec": {"containers": [{"name": "role", "image": "b"}]}},
        lambda m: m["spec"]["containers"] == [{**CONTAINER, "image": "b"}],
    ),
    (
        "a sidecar is added",
        {"spec": {"containers": [{"name": "sidecar"}]}},
        lambda m: [c["name"] for c in m["spec"]["containers"]] == ["role", "sidecar"],
    ),
    (
        "variables by name",
        {
            "spec": {
                "containers": [
                    {"name": "role", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}
                ]
            }
        },
        lambda m: [e["value"] for e in m["spec"]["containers"][0]["env"]] == ["1", "3", "4"],
    ),
    ("null removes", {"spec": {"nodeSelector": None}}, lambda m: "nodeSelector" not in m["spec"]),
    (
        "lists without a key are replaced",
        {"spec": {"tolerations": []}},
        lambda m: m["spec"]["tolerations"] == [],
    ),
    (
        "$patch delete",
        {"spec": {"containers": [{"name": "role", "env": [{"name": "A", "$patch": "delete"}]}]}},
        lambda m: [e["name"] for e in m["spec"]["containers"][0]["env"]] == ["B"],
    ),
    (
        "$patch replace of a list",
        {"spec": {"containers": [{"$patch": "replace"}, {"name": "only"}]}},
        lambda m: m["spec"]["containers"] == [{"name": "only"}],
    ),
    (
        "$patch replace of a map",
        {"spec": {"nodeSelector": {"$patch": "replace", "z": "3"}}},
        lambda m: m["spec"]["nodeSelector"] == {"z": "3"},
    ),
    (
        "new parts lose directives and nulls",
        {"spec": {"affinity": {"a": None, "b": {"$patch": "replace", "c": 1}}}},
        lambda m: m["spec"]["affinity"] == {"b": {"c": 1}},
    ),
]


@pytest.mark.parametrize(("patch", "holds"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_merge(patch, holds):
    before = repr(BASE)
    assert holds(merge(BASE, patch))
    assert repr(BASE) == before


def test_nothing_over_a_base_changes_nothing():
    assert merge(BASE, {}) == BASE
