"""The chart's page: a pod without rights or an account's token, which others reach as far as the values say."""

import os
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.support.kubernetes.helm import CHART, HelmError, helm, render, the

from rlhf_operator.page.cluster.settings import drop_keys, read_settings

PROXY = {"namespaceSelector": {"matchLabels": {"team": "proxies"}}}
VALUES: dict[str, Any] = {
    "ui": {
        "enabled": True,
        "port": 9000,
        "hosts": ["jobs.example"],
        "namespaces": ["training"],
        "from": [PROXY],
        "storePorts": [443, 9000],
        "copiesSizeLimit": "1Gi",
    }
}
NAME = "rlhf-operator-ui"


def make_page(values: dict[str, Any] = VALUES) -> list[dict[str, Any]]:
    return [body for body in render(values) if body["metadata"]["name"] == NAME]


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return container


def test_there_is_none_unless_it_is_wanted():
    assert make_page({}) == []


def test_objects_are_valid_and_lint_finds_nothing():
    for body in make_page():
        kubernetes_validate.validate(body, "1.37", strict=True)
    helm("lint", "--strict", str(CHART), "--values=-", input=yaml.safe_dump(VALUES))


def test_it_has_no_right_and_no_token():
    everything = render(VALUES)
    subjects = [
        subject["name"]
        for body in everything
        if body["kind"].endswith("RoleBinding")
        for subject in body["subjects"]
    ]
    assert subjects
    assert NAME not in subjects
    pod = the(make_page(), "Deployment")["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (NAME, False)
    assert the(make_page(), "ServiceAccount")["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["authority"]["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert set(volumes) == {"authority", "copies"}


def test_its_pod_passes_the_restricted_standard():
    pod, container = the(make_page(), "Deployment")["spec"]["template"]["spec"], container_of(make_page())
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_its_settings_are_those_of_the_values():
    given = {entry["name"]: entry["value"] for entry in container_of(make_page())["env"]}
    service = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    settings = read_settings({**given, **service})
    assert settings.server == "https://[fd00::1]:443"
    assert (settings.port, settings.namespaces) == (9000, ("training",))
    assert {"jobs.example", f"{NAME}.rlhf-system.svc"} <= set(settings.hosts)
    (mount,) = (each for each in container_of(make_page())["volumeMounts"] if each["name"] == "authority")
    assert settings.ca.startswith(mount["mountPath"])


def test_watched_namespaces_are_those_that_are_tried():
    given = container_of(make_page({"ui": {"enabled": True}, "watchNamespaces": ["a", "b"]}))["env"]
    assert {"name": "RLHF_UI_NAMESPACES", "value": "a,b"} in given


def test_keys_of_stores_that_the_pod_may_have_are_dropped(monkeypatch):
    for name in ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_X"):
        monkeypatch.setenv(name, "x")
    drop_keys(environ := dict(os.environ))
    assert [name for name in environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))] == []
    assert "PATH" in environ


def test_probes_call_it_by_a_name_that_it_answers_to():
    for probe in ("readinessProbe", "livenessProbe"):
        assert container_of(make_page())[probe]["httpGet"] == {
            "path": "/healthz",
            "port": "http",
            "httpHeaders": [{"name": "Host", "value": "localhost"}],
        }


def test_others_reach_it_only_where_the_values_say_and_it_reaches_no_metadata():
    spec = the(make_page(), "NetworkPolicy")["spec"]
    assert spec["ingress"] == [{"ports": [{"port": "http"}], "from": [PROXY]}]
    assert the(make_page({"ui": {"enabled": True}}), "NetworkPolicy")["spec"]["ingress"] == []
    dns, server, stores = spec["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert [port["port"] for port in stores["ports"]] == [443, 9000]
    for rule in (server, stores):
        assert "169.254.0.0/16" in rule["to"][0]["ipBlock"]["except"]


def test_no_policy_or_service_of_the_operator_selects_it():
    labels = the(make_page(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    others = [body for body in render(VALUES) if body["metadata"]["name"] != NAME]
    selectors = {
        "Service": lambda spec: spec["selector"],
        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
    }
    chosen = [selectors[body["kind"]](body["spec"]) for body in others if body["kind"] in selectors]
    assert len(chosen) == 3
    assert not any(each.items() <= labels.items() for each in chosen)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"port": 80}, "at '/ui/port'"),
        ({"hosts": ["https://jobs.example"]}, "at '/ui/hosts/0'"),
        ({"namespaces": ["Training"]}, "at '/ui/namespaces/0'"),
        ({"storePorts": []}, "at '/ui/storePorts'"),
        ({"ingress": True}, "'ingress' not allowed"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong, complaint):
    with pytest.raises(HelmError) as caught:
        render({"ui": wrong})
    assert complaint in str(caught.value)
