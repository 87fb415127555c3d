"""Upgrades of the definition on a current API server, with jobs stored under the one before."""

import copy
from typing import Any

import pytest
from tests.api_server.current.jobs import Jobs, define, defined, forget_version
from tests.api_server.current.server import Refused, Server
from tests.support.kubernetes.kube import eventually
from tests.unit.api.manifests import document
from tests.unit.api.schema.cel_cases import RUNNING

from rlhf_api.schema.crd import crd

LONG = "x" * 5000


def loose() -> dict[str, Any]:
    """As the definition was before it had bounds, rules and selectable fields."""

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {
                k: strip(v) for k, v in node.items() if k not in ("maxLength", "maxItems", "maxProperties")
            }
        return [strip(item) for item in node] if isinstance(node, list) else node

    return strip(crd(20))


def with_variables() -> dict[str, Any]:
    """As the definition was where `environment` held variables of processes."""
    made = crd()
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["environment"] = copy.deepcopy(spec["properties"]["env"])
    spec["x-kubernetes-validations"] = [
        rule for rule in spec["x-kubernetes-validations"] if "self.environment." not in rule["rule"]
    ]
    return made


def two_versions(storage: str) -> dict[str, Any]:
    """With a second version like the first, one of which is what objects are stored in."""
    made = copy.deepcopy(crd())
    first = made["spec"]["versions"][0]
    made["spec"]["versions"] = [
        {**first, "name": name, "storage": name == storage} for name in ("v1alpha1", "v1beta1")
    ]
    return made


def only(version: str) -> dict[str, Any]:
    made = two_versions(version)
    made["spec"]["versions"] = [v for v in made["spec"]["versions"] if v["name"] == version]
    return made


def is_deleted(jobs: Jobs) -> bool:
    try:
        jobs.get()
    except Refused as error:
        return error.code == 404
    return False


def judged(jobs: Jobs) -> bool:
    """The present definition is in force already; while the server takes it over, it refuses for other reasons."""
    try:
        jobs.create(document("spec.sampling.minNewTokens=257"), "dryRun=All")
    except Refused as error:
        return error.code == 422
    return False


def test_a_running_job_whose_environment_holds_variables_goes_on(own_server: Server) -> None:
    define(own_server, with_variables())
    jobs = Jobs(own_server)
    stored = document()
    stored["spec"]["environment"] = stored["spec"].pop("env")
    jobs.create(stored)
    jobs.merge({"status": {"phase": "Running", "totalSteps": 4}}, part="/status")
    define(own_server)
    eventually(lambda: judged(jobs), "the rules are in force")
    jobs.merge({"status": {"step": 3}}, part="/status")
    jobs.merge({"spec": {"replicas": 2}}, part="/scale")
    with pytest.raises(Refused, match=RUNNING):
        jobs.merge({"spec": {"environment": {"HF_HOME": "c"}}})
    with pytest.raises(Refused, match=RUNNING):
        jobs.merge({"spec": {"environment": {"path": "a:b"}}})
    assert jobs.get()["spec"]["environment"] == document()["spec"]["env"]


def test_a_running_job_from_before_the_bounds_goes_on(own_server: Server) -> None:
    """A value beyond the bounds stays valid while it is unchanged; changed values are validated."""
    define(own_server, loose())
    jobs = Jobs(own_server)
    jobs.with_status({"phase": "Running", "totalSteps": 4}, f"spec.env.A={LONG}")
    define(own_server)
    eventually(lambda: judged(jobs), "the rules are in force")
    jobs.merge({"status": {"step": 3, "message": "trains"}}, part="/status")
    jobs.merge({"spec": {"replicas": 2}}, part="/scale")
    jobs.merge({"metadata": {"labels": {"team": "a"}}})
    with pytest.raises(Refused, match=RUNNING):
        jobs.merge({"spec": {"steps": 9}})
    jobs.merge({"spec": {"suspend": True}})
    with pytest.raises(Refused, match=r"spec\.env\.A: Too long"):
        jobs.merge({"spec": {"env": {"A": LONG + "x"}}})
    jobs.merge({"spec": {"steps": 9}})
    assert jobs.get()["status"] == {"phase": "Running", "totalSteps": 4, "step": 3, "message": "trains"}
    assert jobs.names("status.phase=Running") == ["job"]


def test_jobs_move_to_a_new_stored_version(own_server: Server) -> None:
    """The steps of a release that introduces one: serve both, store the new one, rewrite, forget the old one."""
    define(own_server)
    old = Jobs(own_server)
    before = old.with_status({"phase": "Running", "totalSteps": 4})
    define(own_server, two_versions("v1beta1"))
    assert defined(own_server)["status"]["storedVersions"] == ["v1alpha1", "v1beta1"]
    new = Jobs(own_server, "v1beta1", old.namespace)
    converted = new.get()
    assert converted["apiVersion"] == "rlhf.dev/v1beta1"
    assert (converted["spec"], converted["status"]) == (before["spec"], before["status"])
    # Rewritten as it is: a running job may, for nothing in it changes.
    eventually(lambda: new.replace(converted["spec"]).body["metadata"]["generation"] == 1, "it is rewritten")
    forget_version(own_server, "v1beta1")
    define(own_server, only("v1beta1"))
    assert new.get()["spec"] == before["spec"]
    eventually(lambda: is_deleted(old), "the old version is gone")


def test_a_version_in_which_jobs_are_stored_cannot_be_dropped(own_server: Server) -> None:
    define(own_server)
    with pytest.raises(Refused, match=r"status\.storedVersions\[0\].*v1alpha1"):
        define(own_server, only("v1beta1"))
