"""Field validation, server-side apply and field selectors of RLHFJobs on a current API server."""

import json

import pytest
from tests.api_server.current.jobs import Jobs
from tests.api_server.current.server import Refused
from tests.unit.api.manifests import document

from rlhf_api.manifest.load import from_cluster

VOLUME = {"name": "data", "mountPath": "/data", "claim": "c"}


def with_parts(spec: dict, **metadata: str) -> dict:
    """A manifest that says no more than this of a job."""
    return {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "job", **metadata},
        "spec": spec,
    }


def test_a_misspelt_key_is_refused_told_or_dropped_as_the_client_asks(jobs: Jobs) -> None:
    misspelt = document()
    misspelt["spec"]["ppo"]["kl_coefficient"] = 0.1
    with pytest.raises(Refused, match=r'strict decoding error: unknown field "spec.ppo.kl_coefficient"'):
        jobs.create(misspelt, "fieldValidation=Strict")
    reply = jobs.create(misspelt, "dryRun=All")
    assert 'unknown field \\"spec.ppo.kl_coefficient\\"' in reply.warnings
    dropped = jobs.create(misspelt, "fieldValidation=Ignore")
    assert dropped.warnings == ""
    assert "kl_coefficient" not in dropped.body["spec"]["ppo"]


def test_a_key_that_stands_twice_is_refused(jobs: Jobs) -> None:
    twice = json.dumps(document()).replace('"steps": 4', '"steps": 4, "steps": 5')
    with pytest.raises(Refused, match=r'duplicate field "spec.steps"'):
        jobs.create(twice, "fieldValidation=Strict")


def test_free_form_parts_take_any_key_strictly(jobs: Jobs) -> None:
    manifest = document("spec.pods.template={spec: {hostNetwork: true, later: {field: 1}}}")
    stored = jobs.create(manifest, "fieldValidation=Strict").body
    assert stored["spec"]["pods"]["template"] == {"spec": {"hostNetwork": True, "later": {"field": 1}}}


def test_quantities_of_whole_numbers_need_no_quotes(jobs: Jobs) -> None:
    stored = jobs.create(document("spec.pods.resources={limits: {cpu: 8, memory: 16Gi}}")).body
    assert from_cluster(stored).spec.pods.resources.limits == {"cpu": "8", "memory": "16Gi"}
    with pytest.raises(Refused, match=r"limits\.cpu"):
        jobs.create({**document("spec.pods.resources={limits: {cpu: 8 GB}}")})


@pytest.mark.parametrize("name", ["7b-ppo", "a.b", "-a", "a-", "a" * 41])
def test_a_name_that_no_service_could_have_is_refused(jobs: Jobs, name: str) -> None:
    manifest = document()
    manifest["metadata"]["name"] = name
    with pytest.raises(Refused, match=r"metadata\.name"):
        jobs.create(manifest)


def test_two_who_apply_own_each_what_they_say(jobs: Jobs) -> None:
    jobs.apply(document("spec.suspend=true"), "rlhf")
    team = with_parts({"pods": {"volumes": [VOLUME], "nodeSelector": {"pool": "a"}}})
    other = with_parts({"pods": {"volumes": [{**VOLUME, "name": "more", "mountPath": "/more"}]}})
    jobs.apply(team, "team")
    jobs.apply(other, "other")
    spec = jobs.get()["spec"]
    assert spec["steps"] == 4
    assert [volume["name"] for volume in spec["pods"]["volumes"]] == ["data", "more"]
    # Who no longer says something takes it away, and no more.
    jobs.apply(with_parts({"pods": {"nodeSelector": {"pool": "a"}}}), "team")
    pods = jobs.get()["spec"]["pods"]
    assert [volume["name"] for volume in pods["volumes"]] == ["more"]
    assert pods["nodeSelector"] == {"pool": "a"}


def test_whose_field_it_is_decides_a_conflict(jobs: Jobs) -> None:
    jobs.apply(document("spec.suspend=true"), "rlhf")
    mine = with_parts({"steps": 9})
    with pytest.raises(Refused, match=r'conflict with "rlhf": \.spec\.steps') as caught:
        jobs.apply(mine, "team")
    assert caught.value.code == 409
    jobs.apply(mine, "team", force=True)
    assert jobs.get()["spec"]["steps"] == 9


def test_an_applied_job_is_judged_as_any_other(jobs: Jobs) -> None:
    jobs.apply(document("spec.suspend=true"), "rlhf")
    with pytest.raises(Refused, match="two of them have the same mountPath"):
        jobs.apply(with_parts({"pods": {"volumes": [VOLUME, {**VOLUME, "name": "more"}]}}), "team")


def test_who_scales_keeps_its_number_when_the_manifest_is_applied_again(jobs: Jobs) -> None:
    """An autoscaler's, as the manifest says nothing of replicas."""
    jobs.apply(document(), "rlhf")
    jobs.merge({"spec": {"replicas": 3}}, part="/scale")
    jobs.apply(document("spec.activeDeadlineSeconds=60"), "rlhf")
    assert jobs.get()["spec"]["generator"]["replicas"] == 3


def test_conditions_of_two_who_apply_stand_beside_each_other(jobs: Jobs) -> None:
    jobs.create(document())

    def say(manager: str, *types: str) -> None:
        conditions = [
            {"type": t, "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for t in types
        ]
        body = {**with_parts({}), "status": {"phase": "Running", "totalSteps": 4, "conditions": conditions}}
        del body["spec"]
        jobs.apply(body, manager, part="/status")

    say("rlhf-operator", "RolesReady", "Suspended")
    say("checker", "Checked")
    say("rlhf-operator", "RolesReady")
    status = jobs.get()["status"]
    assert sorted(c["type"] for c in status["conditions"]) == ["Checked", "RolesReady"]


def test_jobs_are_found_by_the_fields_that_can_be_selected(jobs: Jobs) -> None:
    for name, algorithm, phase in (("a", "ppo", "Running"), ("b", "sft", "Running"), ("c", "ppo", "Failed")):
        made = document(f"spec.algorithm={algorithm}", f"spec.suspend={str(name == 'c').lower()}")
        made["metadata"]["name"] = name
        jobs.create(made)
        jobs.merge({"status": {"phase": phase, "totalSteps": 4}}, name, "/status")
    assert jobs.names() == ["a", "b", "c"]
    assert jobs.names("status.phase=Running") == ["a", "b"]
    assert jobs.names("status.phase!=Running") == ["c"]
    assert jobs.names("spec.algorithm=ppo,status.phase=Running") == ["a"]
    assert jobs.names("spec.suspend=true") == ["c"]
    with pytest.raises(Refused, match=r"field label not supported: spec\.steps"):
        jobs.names("spec.steps=4")


def test_nulls_and_whole_floats_are_stored_as_what_they_mean(jobs: Jobs) -> None:
    stored = jobs.create(document("spec.evaluation=null", "spec.optimizer.weightDecay=1.0")).body
    assert "evaluation" not in stored["spec"]
    assert json.dumps(stored["spec"]["optimizer"]["weightDecay"]) == "1"
