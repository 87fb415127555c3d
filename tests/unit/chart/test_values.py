"""Values: what the schema refuses, and that schema, README and versions are in step with the rest."""

import json
import tomllib
from typing import Any

import pytest
import yaml
from tests.support.kubernetes.helm import CHART, HelmError, render
from tests.support.sources.scripts import load_script

from rlhf_api.job import KIND
from rlhf_api.manifest.load import parse
from rlhf_api.manifest.runtime import parse_runtime
from rlhf_api.schema.crd import CLUSTER_RUNTIME, RUNTIMES, definition

ROOT = CHART.parents[1]


def test_artifact_hub_is_told_of_every_kind_with_examples_that_are_valid() -> None:
    notes = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    crds = yaml.safe_load(notes["artifacthub.io/crds"])
    served = {kind: definition(kind) for kind in (KIND, *RUNTIMES)}
    assert {(crd["kind"], crd["name"], crd["version"]) for crd in crds} == {
        (kind, body["metadata"]["name"], body["spec"]["versions"][0]["name"]) for kind, body in served.items()
    }
    examples = {example["kind"]: example for example in yaml.safe_load(notes["artifacthub.io/crdsExamples"])}
    parse(examples[KIND])
    parse_runtime(examples[CLUSTER_RUNTIME])


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"replicas": 3}, "'replicas' not allowed"),
        ({"replicaCount": "3"}, "at '/replicaCount': got string, want integer"),
        ({"image": {"repository": ""}}, "at '/image/repository'"),
        ({"image": {"digest": "r"}}, "'digest' not allowed"),
        ({"global": {"imageRegistry": "https://r.example"}}, "at '/global/imageRegistry'"),
        ({"global": {"imagePullSecrets": [{"key": "k"}]}}, "at '/global/imagePullSecrets/0'"),
        ({"jobs": {"imagePullPolicy": "Sometimes"}}, "at '/jobs/imagePullPolicy'"),
        ({"watchNamespaces": ["Training"]}, "at '/watchNamespaces/0'"),
        ({"jobs": {"metricsFrom": [{"nameSpaceSelector": {}}]}}, "'nameSpaceSelector' not allowed"),
        (
            {"jobs": {"metricsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}},
            "at '/jobs/metricsFrom/0': maxProperties: got 2, want 1",
        ),
        ({"jobs": {"gpuPrices": {"nvidia.com/gpu": -1}}}, "at '/jobs/gpuPrices/nvidia.com~1gpu'"),
        ({"limits": {"hostPaths": ["models"]}}, "at '/limits/hostPaths/0'"),
        ({"imagePullSecrets": ["registry"]}, "at '/imagePullSecrets/0': got string, want object"),
        ({"metrics": {"port": 99999}}, "at '/metrics/port'"),
        ({"metrics": {"alerts": {"stuckAfter": "half an hour"}}}, "at '/metrics/alerts/stuckAfter'"),
        ({"webhook": {"failurePolicy": "ignore"}}, "at '/webhook/failurePolicy'"),
        ({"resources": {"request": {}}}, "'request' not allowed"),
        ({"fullnameOverride": "x" * 41}, "at '/fullnameOverride'"),
        ({"extraEnv": [{"value": "v"}]}, "missing property 'name'"),
    ],
    ids=lambda part: json.dumps(part)[:40] if isinstance(part, dict) else "",
)
def test_a_wrong_value_is_refused_by_name(wrong, complaint):
    with pytest.raises(HelmError) as refused:
        render(wrong)
    assert complaint in str(refused.value)


def test_one_port_for_metrics_and_webhook_is_refused():
    given = {"existingSecret": "certificate", "caBundle": "UEVN"}
    same = {"metrics": {"port": 9443}, "webhook": {"enabled": True, **given}}
    with pytest.raises(HelmError, match=r"metrics\.port and webhook\.port must differ; both are 9443"):
        render(same)
    render({"metrics": {"port": 9443}})


def test_the_schema_knows_every_value_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(schema: dict[str, Any], values: dict[str, Any], where: str) -> None:
        for name, inner in schema["properties"].items():
            if "properties" in inner and values[name]:
                compare(inner, values[name], f"{where}{name}.")
        assert set(schema["properties"]) == set(values), where

    compare(schema, values, "")


def test_the_readme_is_current():
    script = ROOT / "tools" / "make_chart_reference.py"
    assert (CHART / "README.md").read_text() == load_script(script).page(), f"run {script.relative_to(ROOT)}"


def test_chart_and_package_have_one_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
