"""Pods that the operator makes, with what the pages of platforms say, against the rules of these platforms."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.kubernetes.helm import render, the
from tests.support.kubernetes.platforms import refused_by_autopilot, refused_by_openshift

from rlhf_api.contract.run import roles_of
from rlhf_api.manifest.includes import merge
from rlhf_api.manifest.load import parse
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod

ROOT = Path(__file__).parents[5]
FIRST = sorted((ROOT / "examples" / "cluster").glob("*.yaml"))
USERS, GROUPS = range(1000650000, 1000660000), range(1000650000, 1000660000)


def blocks(page: str) -> list[Any]:
    """YAML blocks of a page."""
    text = (ROOT / "docs" / "guides" / "clusters" / page).read_text()
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def operator(values: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """The settings of an operator that the chart installs with these values, and its pod."""
    pod = the(render(values), "Deployment")["spec"]["template"]
    environment = {each["name"]: each.get("value", "k" * 32) for each in pod["spec"]["containers"][0]["env"]}
    return Settings.read(environment), pod


def pods(file: Path, settings: Settings, *changes: Any) -> Iterator[dict[str, Any]]:
    """One pod of each role of the file's job, with these changes of its manifest."""
    (document,) = (each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "RLHFJob")
    for change in changes:
        document = merge(document, change)
    spec = parse(document).spec
    pinned = Pinned.make("job", spec, settings.defaults, "u")
    again = Pinned.read(pinned.config_map(), settings.defaults)
    for role in roles_of(spec):
        new = NewPod(role, 0, 1, resume=False)
        assert build_pod(again, new, "u") == build_pod(pinned, new, "u")
        yield build_pod(pinned, new, "u")


@pytest.mark.parametrize("file", FIRST, ids=lambda file: file.stem)
def test_openshift_admits_operator_and_jobs_that_name_no_user(file):
    settings, pod = operator(blocks("openshift.md")[0])
    for each in (pod, *pods(file, settings)):
        assert refused_by_openshift(each, USERS, GROUPS) == []
        assert each["spec"]["securityContext"]["runAsNonRoot"] is True
    default, _ = operator({})
    for each in pods(file, default):
        assert set(refused_by_openshift(each, USERS, GROUPS)) == {"runAsUser 65532", "fsGroup 65532"}


def test_a_user_without_a_name_has_one_for_those_who_ask():
    """`getpass.getuser`, which torch calls for the names of its caches, fails for a user that no file lists."""
    (pod, *_) = pods(FIRST[0], operator({})[0])
    assert {"name": "USER", "value": "rlhf"} in pod["spec"]["containers"][0]["env"]


@pytest.mark.parametrize("file", FIRST, ids=lambda file: file.stem)
def test_autopilot_admits_operator_and_jobs_that_ask_for_what_they_need(file):
    settings, pod = operator({})
    resources, identity = blocks("gke-autopilot.md")
    assert refused_by_autopilot(pod) == [
        "limit of cpu is not its request",
        "limit of memory is not its request",
        "no request of ephemeral-storage",
    ], "which Autopilot sets"
    for each in pods(file, settings, resources, identity):
        assert refused_by_autopilot(each) == []
        assert each["spec"]["serviceAccountName"] == "trainer"
        assert each["spec"]["automountServiceAccountToken"] is False
    for each in pods(file, settings):
        assert "no request of cpu" in refused_by_autopilot(each)


def test_an_account_with_rights_in_aws_is_named_without_the_api_s_token():
    settings, _ = operator({})
    (job,) = (block for block in blocks("eks.md") if "checkpoint" in block.get("spec", {}))
    for each in pods(FIRST[0], settings, job):
        assert each["spec"]["serviceAccountName"] == "trainer"
        assert each["spec"]["automountServiceAccountToken"] is False
        assert {"name": "AWS_REGION", "value": "eu-central-1"} in each["spec"]["containers"][0]["env"]
    (efs,) = (block for block in blocks("eks.md") if block.get("kind") == "StorageClass")
    user = next(pods(FIRST[0], settings))["spec"]["securityContext"]["runAsUser"]
    assert efs["parameters"]["uid"] == efs["parameters"]["gid"] == str(user)


@pytest.mark.parametrize("text", ["[]", "no JSON", '"text"'])
def test_a_security_context_that_is_none_is_refused_at_the_operator_s_start(text):
    environment = {"RLHF_TRAINER_IMAGE": "t", "RLHF_TOKEN_KEY": "k" * 32}
    with pytest.raises(ValueError, match="RLHF_POD_SECURITY_CONTEXT must be JSON like"):
        Settings.read({**environment, "RLHF_POD_SECURITY_CONTEXT": text})
    given = json.dumps({"runAsNonRoot": True})
    assert Settings.read({**environment, "RLHF_POD_SECURITY_CONTEXT": given}).pod_security == {
        "runAsNonRoot": True
    }
