"""The schema that `rlhf schema` prints, as a YAML language server reads it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tests.api.manifests import document

from rlhf_api.json_schema import manifest_schema

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))
SCHEMA = Draft202012Validator(manifest_schema())


def errors(manifest: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in SCHEMA.iter_errors(manifest)]


def test_it_is_one():
    Draft202012Validator.check_schema(SCHEMA.schema)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_example_fits(file: Path):
    manifests = [m for m in yaml.safe_load_all(file.read_text()) if m.get("kind", "RLHFJob") == "RLHFJob"]
    assert [errors(manifest) for manifest in manifests] == [[]] * len(manifests)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "spec.sampling.topk=1",
            "$.spec.sampling: Additional properties are not allowed ('topk' was unexpected)",
        ),
        ("spec.steps=ten", "$.spec.steps: 'ten' is not valid under any of the given schemas"),
        ("spec.optimizer.schedule=step", "$.spec.optimizer.schedule: 'step' is not valid under any"),
    ],
)
def test_mistakes_are_marked_where_they_are(override: str, said: str):
    (found,) = errors(document(override))
    assert found.startswith(said)


def test_variables_includes_and_text_without_quotes_are_none():
    made = document("spec.environment={OMP_NUM_THREADS: 2}")
    made |= {"include": ["base.yaml"]}
    made["spec"] |= {"steps": "${STEPS:4}", "suspend": "${LATER}", "algorithm": "${ALGORITHM}"}
    del made["spec"]["model"], made["kind"]
    assert errors(made) == []


def test_fields_say_what_they_do():
    assert (
        SCHEMA.schema["$defs"]["Spec"]["properties"]["steps"]["description"]
        == "Training steps of the whole run."
    )


def test_it_is_printed_by_a_verb():
    command = [sys.executable, "-m", "rlhf_operator.cli", "schema"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(printed.stdout) == json.loads(json.dumps(SCHEMA.schema))
