"""The definition on a current API server: accepted, and within the cost budget of its rules for its bounds."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api_server.current.binary import Binary
from tests.api_server.current.jobs import DEFINITIONS, Jobs, check, define, defined
from tests.api_server.current.server import Refused, Server, server
from tests.support.kubernetes.kube import eventually
from tests.unit.api.manifests import document
from tests.unit.api.schema.cel_cases import RUNNING

from rlhf_api.schema.crd import CLUSTER_RUNTIME, RUNTIMES, crd, runtime_crd

EXAMPLE = Path(__file__).parents[3] / "examples" / "runtimes" / "h100.yaml"
RULES = "x-kubernetes-validations"


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for inner in tree.values():
            yield from nodes(inner)
    elif isinstance(tree, list):
        for inner in tree:
            yield from nodes(inner)


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The definition with a change to each of its objects."""
    made = copy.deepcopy(crd())
    for node in [*nodes(made)]:
        change(node)
    return made


def test_it_is_accepted_as_it_is_written(modern: Server) -> None:
    def accepted() -> bool:
        conditions = {c["type"]: c["status"] for c in defined(modern)["status"]["conditions"]}
        return conditions == {"NamesAccepted": "True", "Established": "True"}

    eventually(accepted, "its names are accepted, and it is established")
    assert defined(modern)["spec"]["versions"] == crd()["spec"]["versions"]


@pytest.mark.parametrize("kind", RUNTIMES)
def test_runtimes_are_served_and_malformed_ones_refused(modern: Server, kind: str) -> None:
    modern.call("POST", DEFINITIONS, runtime_crd(kind))
    where = "" if kind == CLUSTER_RUNTIME else "namespaces/team/"
    path = f"/apis/rlhf.dev/v1alpha1/{where}{kind.lower()}s"

    def make(name: str, spec: dict[str, Any]) -> None:
        meta = {"name": name, **({"namespace": "team"} if where else {})}
        body = {"apiVersion": "rlhf.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
        modern.call("POST", f"{path}?fieldValidation=Strict", body)

    def served() -> bool:
        with suppress(Refused):
            modern.call("GET", path)
            return True
        return False

    eventually(served, f"{kind} is served")
    make("good", yaml.safe_load(EXAMPLE.read_text())["spec"])
    with pytest.raises(Refused, match=r"spec\.pods\.gpu\.count.*greater than or equal to 1"):
        make("bad", {"pods": {"gpu": {"count": 0}}})
    with pytest.raises(Refused, match=r'unknown field "spec\.steps"'):
        make("bad", {"steps": 4})


@pytest.mark.parametrize("version", ["1.33", "1.34", "1.35"])
def test_earlier_versions_that_the_server_emulates_accept_it(binary: Binary, tmp_path, version: str) -> None:
    with server(binary, tmp_path, f"--emulated-version=kube={version}") as earlier:
        define(earlier)
        jobs = Jobs(earlier)
        jobs.with_status({"phase": "Running", "totalSteps": 4})
        with pytest.raises(Refused, match=RUNNING):
            jobs.replace(document("spec.steps=9")["spec"])
        assert jobs.names("status.phase=Running") == ["job"]


def test_its_rules_take_a_sixteenth_of_the_budget_at_most(modern: Server) -> None:
    """This leaves room for further algorithms' rules."""

    def repeat(node: dict[str, Any]) -> None:
        if isinstance(rules := node.get(RULES), list):
            node[RULES] = [{**rule, "message": f"{rule['message']} {i}"} for i in range(16) for rule in rules]

    check(modern, changed(repeat))


@pytest.mark.parametrize("bound", ["maxItems", "maxLength"])
def test_without_its_bounds_they_would_cost_too_much(modern: Server, bound: str) -> None:
    with pytest.raises(Refused, match="estimated rule cost exceeds budget"):
        check(modern, changed(lambda node: node.pop(bound, None)))


def test_the_largest_job_costs_its_rules_no_more_than_the_server_allows(jobs: Jobs) -> None:
    """Estimates are made of the bounds; the costs of one object are counted while its rules run."""
    largest = document()
    spec = largest["spec"]
    spec["env"] = {f"A{i}": "x" * 4096 for i in range(256)}
    spec["data"]["train"] = ["x" * 300] * 4096
    spec["pods"] = pods = {
        "gpu": {"count": 1, "resource": "g" * 317},
        "resources": {kind: {f"r{i}": "1" for i in range(32)} for kind in ("requests", "limits")},
        "tolerations": [{"key": "k" * 317, "effect": "NoExecute", "tolerationSeconds": 1}] * 32,
        "volumes": [
            {"name": f"v{i}", "mountPath": f"/{i:02}{'x' * 253}", "claim": "c" * 253} for i in range(32)
        ],
    }
    for role in ("trainer", "generator", "reward", "reference"):
        spec[role] = {**spec.get(role, {}), "pods": pods}
    jobs.create(largest, "dryRun=All")
    spec["data"]["train"] = ["x" * 300]  # what etcd takes
    jobs.create(largest)
    jobs.merge({"status": {"phase": "Running", "totalSteps": 4}}, part="/status")
    jobs.merge({"spec": {"generator": {"replicas": 2}}})
    with pytest.raises(Refused, match=RUNNING):
        jobs.merge({"spec": {"env": {"A255": "y" * 4096}}})


def test_what_is_too_large_is_refused_with_its_field(jobs: Jobs) -> None:
    made = document()
    made["spec"]["env"] = {f"A{i}": "x" for i in range(257)}
    made["spec"]["model"]["reward"] = "x" * 4097
    made["spec"]["data"]["train"] = ["x"] * 4097
    made["spec"]["pods"] = {"template": {f"k{i}": 1 for i in range(257)}}
    with pytest.raises(Refused) as caught:
        jobs.create(made)
    limits = dict(re.findall(r"(spec\.[\w.]+): Too (\w+)", str(caught.value)))
    assert limits == {
        "spec.env": "many",
        "spec.model.reward": "long",
        "spec.data.train": "many",
        "spec.pods.template": "many",
    }
