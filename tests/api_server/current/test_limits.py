"""The chart's ValidatingAdmissionPolicy on a current API server: the limits of what jobs may ask for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.api_server.current.binary import Binary
from tests.api_server.current.jobs import Jobs, define
from tests.api_server.current.policies import policies
from tests.api_server.current.server import Refused, Server, server
from tests.support.kubernetes.helm import render
from tests.support.limits import ALLOWED, LIMITS, REFUSED
from tests.unit.api.manifests import document

from rlhf_api.roles import Role
from rlhf_api.rules.pods.template import MOST_ITEMS
from rlhf_api.schema.crd import crd

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"


def rendered(values: dict[str, Any], version: str = "1.36.0") -> list[dict[str, Any]]:
    """The policy of the limits, and its binding."""
    objects = render(values, f"--kube-version={version}")
    return [
        o for o in objects if "AdmissionPolicy" in o["kind"] and o["metadata"]["name"].endswith("-limits")
    ]


@pytest.fixture(scope="module")
def limited(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    values = {"limits": {"enabled": True, "requireQueue": True, **LIMITS}}
    objects = rendered(values)
    assert len(objects) == 2
    folder = tmp_path_factory.mktemp("limited")
    with server(binary, folder) as unlimited:
        define(unlimited)
        before = Jobs(unlimited)
        before.create(job("older", {"template": {"spec": {"hostNetwork": True}}}))
    with policies(objects) as core, server(binary, folder, core=core) as running:
        yield Jobs(running, namespace=before.namespace)


def job(name: str, pods: dict, role: Role | None = None, **labels: str) -> dict:
    body = document()
    body["metadata"] = {"name": name, "labels": {QUEUE: "team", **labels}}
    (body["spec"].setdefault(role.value, {}) if role else body["spec"])["pods"] = pods
    return body


@pytest.mark.parametrize("number", range(len(ALLOWED)))
def test_what_the_limits_allow_is_accepted(limited: Jobs, number: int) -> None:
    limited.create(job(f"allowed-{number}", ALLOWED[number]))


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_they_do_not_is_refused_for_the_job_and_for_any_role(limited: Jobs, number: int) -> None:
    pods, word = REFUSED[number]
    for role in (None, *Role):
        with pytest.raises(Refused, match=word) as refused:
            limited.create(job("refused", pods, role))
        assert refused.value.code == 422
        assert "this cluster's limits do not allow" in str(refused.value)


def test_a_job_needs_a_queue_and_keeps_one(limited: Jobs) -> None:
    with pytest.raises(Refused, match="require a queue"):
        limited.create(document("metadata.name=none"))
    limited.create(job("queued", {}))
    with pytest.raises(Refused, match="require a queue"):
        limited.merge({"metadata": {"labels": {QUEUE: None}}}, "queued")


def test_a_queue_of_volcano_is_one_that_the_limits_list(limited: Jobs) -> None:
    theirs, ours = job("theirs", {}), job("ours", {})
    theirs["spec"]["scheduling"] = {"gang": "volcano", "queue": "theirs"}
    ours["spec"]["scheduling"] = {"gang": "volcano", "queue": "team"}
    with pytest.raises(Refused, match="a queue of Volcano"):
        limited.create(theirs)
    limited.create(ours)
    limited.merge({"spec": {"suspend": True}}, "ours")
    with pytest.raises(Refused, match="a queue of Volcano"):
        limited.merge({"spec": {"scheduling": {"queue": "theirs"}}}, "ours")


def test_a_label_names_only_a_priority_that_is_allowed_also_later(limited: Jobs) -> None:
    with pytest.raises(Refused, match="priority class"):
        limited.create(job("urgent", {}, **{PRIORITY: "urgent"}))
    limited.create(job("batch", {}, **{PRIORITY: "batch"}))
    with pytest.raises(Refused, match="priority class"):
        limited.merge({"metadata": {"labels": {PRIORITY: "urgent"}}}, "batch")


def test_a_change_is_judged_as_the_whole_and_other_metadata_is_not(limited: Jobs) -> None:
    limited.create(job("changed", {}))
    limited.merge({"spec": {"suspend": True}}, "changed")
    limited.merge({"metadata": {"annotations": {"a": "b"}}}, "changed")
    with pytest.raises(Refused, match="priority class"):
        limited.merge({"spec": {"pods": {"priorityClass": "other"}}}, "changed")


def test_a_job_from_before_the_limits_may_be_suspended_and_not_resumed(limited: Jobs) -> None:
    limited.merge({"spec": {"ttlSecondsAfterFinished": 60, "generator": {"replicas": 2}}}, "older")
    limited.merge({"spec": {"suspend": True}}, "older")
    with pytest.raises(Refused, match="the node's network"):
        limited.merge({"spec": {"suspend": False}}, "older")


def test_the_limits_of_an_operator_are_those_of_the_namespaces_that_it_watches(
    binary: Binary, tmp_path: Path
) -> None:
    """Also for a job whose runtime brings the rest of its pods: the API server judges what the job itself asks for."""
    values = {"limits": {"enabled": True, **LIMITS}, "watchNamespaces": ["watched", "watched-too"]}
    objects = rendered(values)
    modest, bold = (job(name, {}) for name in ("modest", "bold"))
    for body in (modest, bold):
        body["spec"]["runtime"] = {"kind": "ClusterRLHFRuntime", "name": "h100"}
    bold["spec"]["pods"] = {"template": {"spec": {"hostNetwork": True}}}
    with policies(objects) as core, server(binary, tmp_path, core=core) as running:
        define(running)
        for namespace in ("watched", "watched-too"):
            with pytest.raises(Refused, match="the node's network"):
                Jobs(running, namespace=namespace).create(bold)
            Jobs(running, namespace=namespace).create(modest)
        Jobs(running, namespace="another").create(bold)


def test_the_policy_is_left_out_where_the_server_or_the_administrator_has_none() -> None:
    for version, limits in (("1.29.0", {"enabled": True}), ("1.36.0", {})):
        assert rendered({"limits": limits}, version) == []


def processor_seconds() -> float:
    """Of the API servers that run."""
    running = psutil.Process().children(recursive=True)
    return sum(sum(one.cpu_times()[:2]) for one in running if "apiextensions" in one.name())


def largest(containers: int) -> dict:
    """A job whose templates of every role have this many containers and init containers, and all volumes allowed."""
    lists = {
        key: [{"name": f"{key}-{i}"} for i in range(containers)] for key in ("containers", "initContainers")
    }
    pods = {
        "template": {"spec": {**lists, "volumes": [{"name": f"v-{i}"} for i in range(MOST_ITEMS["volumes"])]}}
    }
    body = job("largest", pods)
    for role in Role:
        body["spec"].setdefault(role.value, {})["pods"] = pods
    return body


def test_the_largest_job_takes_the_api_server_no_time_and_a_larger_one_is_not_walked(
    limited: Jobs, modern: Server
) -> None:
    """20,000 init containers took the policy 15 s of processor, in a dry run too."""
    most, before = MOST_ITEMS["containers"], processor_seconds()
    for jobs in (Jobs(modern), limited):
        jobs.create(largest(most), query="dryRun=All")
        with pytest.raises(Refused, match=rf"must have at most {most} items"):
            jobs.create(largest(4_000), query="dryRun=All")
    assert processor_seconds() - before < 5


def test_the_policy_walks_no_lists_that_a_definition_of_an_earlier_release_does_not_bound(
    binary: Binary, tmp_path: Path
) -> None:
    definition = json.loads(json.dumps(crd()).replace('"maxItems": 16', '"maxItems": 90000'))
    objects = rendered({"limits": {"enabled": True}})
    body = job("many", {"template": {"spec": {"initContainers": [{"name": f"a{i}"} for i in range(20_000)]}}})
    with policies(objects) as core, server(binary, tmp_path, core=core) as running:
        define(running, definition)
        before = processor_seconds()
        with pytest.raises(Refused, match="more than 64 containers"):
            Jobs(running).create(body, query="dryRun=All")
        assert processor_seconds() - before < 5
