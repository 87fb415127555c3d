"""The chart's policy of what the operator's account may write, on a current API server.

This server has custom resources alone: the policy is the chart's but for the kinds and the account that it is about.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.api_server.current.binary import Binary
from tests.api_server.current.jobs import DEFINITIONS
from tests.api_server.current.policies import policies
from tests.api_server.current.server import MERGE, Refused, Server, server
from tests.support.kubernetes.helm import render
from tests.support.kubernetes.kube import eventually

ACCOUNT = "system:serviceaccount:rlhf-system:rlhf-operator"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
THINGS = "/apis/example.com/v1/namespaces/kube-system/things"
LABELS = {"app.kubernetes.io/managed-by": "rlhf-operator", "rlhf.dev/job": "ppo"}
OWNER = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "name": "ppo", "uid": "1"}
THEIRS = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "ppo", "uid": "2"}


def policy() -> list[dict[str, Any]]:
    return [o for o in render({}, "--kube-version=1.36.0") if "AdmissionPolicy" in o["kind"]]


def of_things(account: str) -> list[dict[str, Any]]:
    objects = json.loads(json.dumps(policy()).replace(ACCOUNT, account))
    (rules,) = [
        o["spec"]["matchConstraints"]["resourceRules"] for o in objects if "matchConstraints" in o["spec"]
    ]
    rules[:] = [{**rules[0], "apiGroups": ["example.com"], "resources": ["things"]}]
    return objects


@pytest.fixture(scope="module", params=["tests", "somebody-else"])
def account(request: pytest.FixtureRequest) -> str:
    """Whom the policy is of; these tests are `tests`."""
    return request.param


@pytest.fixture(scope="module")
def things(binary: Binary, account: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("things")
    with server(binary, folder) as free:
        free.call("POST", DEFINITIONS, DEFINITION)

        def served() -> bool:
            try:
                return bool(free.call("GET", THINGS).body)
            except Refused:
                return False

        eventually(served, "things are served")
        for name in ("foreign", "foreign-to-delete"):
            free.call("POST", THINGS, thing(name, {"app": "theirs"}, THEIRS))
        free.call("POST", THINGS, thing("without-labels", {}, OWNER))
        free.call("POST", THINGS, thing("without-owner", LABELS))
    with policies(of_things(account)) as core, server(binary, folder, core=core) as running:
        eventually(lambda: running.call("GET", THINGS).body["items"], "things are served")
        yield running


def thing(name: str, labels: dict[str, str], *owners: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels, "ownerReferences": [*owners]}
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata}


@pytest.mark.parametrize(
    "body",
    [
        thing("bare", {}),
        thing("of-a-deployment", LABELS, THEIRS),
        thing("of-another-job", {**LABELS, "rlhf.dev/job": "sft"}, OWNER),
        thing("without-its-owner", LABELS),
        thing("without-its-labels", {"rlhf.dev/job": "ppo"}, OWNER),
    ],
    ids=lambda body: body["metadata"]["name"],
)
def test_the_account_makes_only_objects_of_jobs(things: Server, account: str, body: dict[str, Any]) -> None:
    if account != "tests":
        things.call("POST", THINGS, body)
        return
    with pytest.raises(Refused, match="only objects that an RLHFJob owns, with the labels of its job"):
        things.call("POST", THINGS, body)


@pytest.mark.parametrize("change", [{"data": 1}, thing("foreign", LABELS, OWNER)], ids=["changed", "taken"])
def test_it_changes_no_object_of_others_and_takes_none(
    things: Server, account: str, change: dict[str, Any]
) -> None:
    if account != "tests":
        things.call("PATCH", f"{THINGS}/foreign", {"data": 2}, MERGE)
        return
    with pytest.raises(Refused, match="the operator's account may"):
        things.call("PATCH", f"{THINGS}/foreign", change, MERGE)


def test_it_deletes_no_object_of_others(things: Server, account: str) -> None:
    if account != "tests":
        things.call("DELETE", f"{THINGS}/foreign-to-delete")
        return
    with pytest.raises(Refused, match="may change and delete only objects of RLHFJobs"):
        things.call("DELETE", f"{THINGS}/foreign-to-delete")


@pytest.mark.parametrize("name", ["without-labels", "without-owner"])
def test_what_a_job_has_is_put_right_changed_and_deleted(things: Server, name: str) -> None:
    things.call("PATCH", f"{THINGS}/{name}", thing(name, LABELS, OWNER), MERGE)
    things.call("PATCH", f"{THINGS}/{name}", {"data": 1}, MERGE)
    things.call("DELETE", f"{THINGS}/{name}")


def test_the_policy_covers_what_the_roles_let_the_account_write_in_all_namespaces() -> None:
    rendered = {(o["kind"], o["metadata"]["name"]): o for o in render({}, "--kube-version=1.36.0")}
    role = rendered["ClusterRole", "rlhf-operator"]
    writes = {
        (group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"create", "patch", "delete"} & {*rule["verbs"]} and "/" not in resource and group != "rlhf.dev"
    }
    (rules,) = [
        o["spec"]["matchConstraints"]["resourceRules"] for o in policy() if "matchConstraints" in o["spec"]
    ]
    covered = {(group, each) for rule in rules for group in rule["apiGroups"] for each in rule["resources"]}
    assert writes - covered == {("", "events")}


@pytest.mark.parametrize(
    ("values", "version"),
    [
        ({}, "1.29.0"),
        ({"watchNamespaces": ["one"]}, "1.36.0"),
        ({"rbac": {"admissionPolicy": False}}, "1.36.0"),
        ({"rbac": {"create": False}}, "1.36.0"),
    ],
)
def test_there_is_none_where_the_server_or_the_administrator_has_none_or_roles_are_narrower(
    values: dict[str, Any], version: str
) -> None:
    assert "AdmissionPolicy" not in json.dumps(render(values, f"--kube-version={version}"))
