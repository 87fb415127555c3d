"""The schema that `rlhf schema` prints, as a YAML language server reads it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from pydantic.alias_generators import to_snake
from tests.unit.api.manifests import document

from rlhf_api.errors.model_fields import models_in
from rlhf_api.field_types import former_names
from rlhf_api.job import RLHFJob
from rlhf_api.schema.json_schema import manifest_schema

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").rglob("*.yaml"))
SCHEMA = Draft202012Validator(manifest_schema())


def all_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    inner = [each for field in model.model_fields.values() for each in models_in(field.annotation)]
    return list(dict.fromkeys([model, *(below for each in inner for below in all_models(each))]))


def errors(manifest: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in SCHEMA.iter_errors(manifest)]


def test_it_is_one():
    Draft202012Validator.check_schema(SCHEMA.schema)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_example_fits(file: Path):
    manifests = [m for m in yaml.safe_load_all(file.read_text()) if m.get("kind", "RLHFJob") == "RLHFJob"]
    assert [errors(manifest) for manifest in manifests] == [[]] * len(manifests)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "spec.sampling.topk=1",
            "$.spec.sampling: 'topk' does not match any of the regexes",
        ),
        ("spec.steps=ten", "$.spec.steps: 'ten' is not valid under any of the given schemas"),
        ("spec.optimizer.schedule=step", "$.spec.optimizer.schedule: 'step' is not valid under any"),
    ],
)
def test_mistakes_are_marked_where_they_are(override: str, message: str):
    (error,) = errors(document(override))
    assert error.startswith(message)


def test_variables_includes_and_nulls_are_none():
    made = document("spec.env={OMP_NUM_THREADS: '2'}", "spec.optimizer.betas=['${A}', 0.9]")
    made |= {"include": ["base.yaml"]}
    made["spec"] |= {"steps": "${STEPS:4}", "suspend": "${LATER}", "algorithm": "${ALGORITHM}"}
    made["spec"] |= {"grpo": None, "seed": None}  # of what is included
    made["spec"]["data"] = {"train": None, "systemPrompt": None}
    del made["spec"]["model"], made["kind"]
    assert errors(made) == []


def snake(node: Any, model: type[BaseModel] | None) -> Any:
    """A document of a model with every field as it is in Python."""
    if isinstance(node, list):
        return [snake(item, model) for item in node]
    if model is None or not isinstance(node, dict):
        return node
    fields = {field.alias or name: (name, field) for name, field in model.model_fields.items()}
    inner = {key: models_in(field.annotation) for key, (_, field) in fields.items()}
    return {fields[key][0]: snake(value, next(iter(inner[key]), None)) for key, value in node.items()}


def test_snake_case_is_none():
    made = snake(document("spec.health.rules=[{metric: kl_mean, deviationsAbove: 2, action: warn}]"), RLHFJob)
    made["spec"]["generator"]["autoscale"] = {"max_replicas": 2}
    assert made["spec"]["health"]["rules"][0]["deviations_above"] == 2
    assert errors(made) == []
    made["spec"]["sampling"] = {"top_kk": 1}
    (error,) = errors(made)
    assert error.startswith("$.spec.sampling: ")
    assert "'top_kk'" in error


@pytest.mark.parametrize("model", all_models(RLHFJob), ids=lambda model: model.__name__)
def test_every_field_has_its_name_in_python_and_its_former_one(model: type[BaseModel]):
    names = SCHEMA.schema["$defs"].get(model.__name__, SCHEMA.schema)
    patterns = names.get("patternProperties", {})
    in_python = {name for name, f in model.model_fields.items() if name != (f.alias or name)}
    former = {word for name in former_names(model) for word in (name, to_snake(name))}
    assert in_python | former == {pattern.strip("^$") for pattern in patterns}
    assert not {*former_names(model)} & names["properties"].keys(), "editors do not offer them"


def test_deepspeeds_auto_and_batching_keys_are_none():
    batches = {"train_batch_size": "auto", "gradient_accumulation_steps": 8, "gradient_clipping": "auto"}
    zero = {"stage": 3, "reduce_bucket_size": "auto"}
    made = document()
    made["spec"]["trainer"]["deepspeed"] = {
        **batches,
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero,
    }
    assert errors(made) == []
    made["spec"]["steps"] = "auto"
    made["spec"]["trainer"]["deepspeed"]["train_batch_size"] = 0
    assert len(errors(made)) == 2


def test_fields_say_what_they_do():
    assert (
        SCHEMA.schema["$defs"]["Spec"]["properties"]["steps"]["description"]
        == "Training steps of the whole run."
    )


def test_it_is_printed_by_a_verb():
    command = [sys.executable, "-m", "rlhf_operator.cli", "schema"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(printed.stdout) == json.loads(json.dumps(SCHEMA.schema))
