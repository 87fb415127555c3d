"""The CRD: in step with the models, structural, and what clients and other servers read in it."""

import json
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel

from rlhf_api.contract.status import JobStatus
from rlhf_api.field_types import former_names
from rlhf_api.job import KIND
from rlhf_api.manifest import spec_size
from rlhf_api.roles import Role
from rlhf_api.rules import size_limits
from rlhf_api.schema.crd import CLUSTER_RUNTIME, RUNTIMES, crd, definition, document
from rlhf_api.sections.deepspeed import DeepSpeedConfig
from rlhf_api.spec import Spec

FOLDERS = ("crds", "charts/rlhf-operator/files")
KINDS = (KIND, *RUNTIMES)
VERSION = crd()["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]


TEMPLATE = ".pods.template"
"""Free-form, with bounds of some lists in it."""


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for key, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def at(path: str) -> dict[str, Any]:
    return dict(nodes(ROOT))[path]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_current_and_fits(folder: str, kind: str) -> None:
    file = Path(__file__).parents[4] / folder / f"{kind.lower()}s.rlhf.dev.yaml"
    assert file.read_text() == document(kind=kind), (
        f"{folder}/{file.name} is out of date: run `make generated`"
    )
    assert yaml.safe_load(file.read_text()) == definition(kind)
    assert file.stat().st_size < 128_000
    # `kubectl apply` keeps the object in an annotation, of which an object has 256 KiB at most.
    assert len(json.dumps(definition(kind), separators=(",", ":"))) < 148 * 1024


@pytest.mark.parametrize("arguments", [[], [CLUSTER_RUNTIME]])
def test_it_is_printed_by_the_module(arguments: list[str]) -> None:
    out = subprocess.run(
        [sys.executable, "-m", "rlhf_api.schema.crd", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert out.stdout == document(kind=arguments[0] if arguments else KIND)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minor", [20, 25, 37])
def test_it_is_valid_in_kubernetes_1_37(minor: int, kind: str) -> None:
    assert kubernetes_validate.validate(definition(kind, minor), "1.37", strict=True) == "1.37"


def test_it_is_structural() -> None:
    """Every node has a type or is left open; nothing that the API server forbids in a structural schema."""
    known = {
        *(
            "type",
            "description",
            "properties",
            "items",
            "additionalProperties",
            "required",
            "enum",
            "default",
        ),
        *("pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
        *(
            "minLength",
            "maxLength",
            "maxProperties",
            "x-kubernetes-validations",
            "x-kubernetes-preserve-unknown-fields",
        ),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    }
    for path, node in nodes(ROOT):
        if node.get("x-kubernetes-int-or-string"):
            assert node.keys() == {"x-kubernetes-int-or-string", "anyOf", "pattern", "maxLength"}, path
            continue
        assert set(node) <= known, path
        assert node["type"] in ("object", "array", "string", "integer", "number", "boolean"), path
        assert ("items" in node) == (node["type"] == "array"), path
        assert not ("properties" in node and "additionalProperties" in node), path
        if node["type"] == "object" and path != "metadata":
            inner = {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & set(node)
            assert len(inner) == 1 or TEMPLATE in path or path == ".spec.environment", path


def test_an_old_server_gets_the_same_but_for_what_it_does_not_know() -> None:
    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: strip(v) for k, v in node.items() if k != "x-kubernetes-validations"}
        return [strip(item) for item in node] if isinstance(node, list) else node

    plain = strip(crd())
    selectable = plain["spec"]["versions"][0].pop("selectableFields")
    assert plain == crd(24)
    plain["spec"]["versions"][0]["selectableFields"] = selectable
    assert plain == strip(crd(30))
    assert "selectableFields" not in crd(29)["spec"]["versions"][0]
    assert "x-kubernetes-validations" in crd(25)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def keys(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


SECTIONS = ("deepspeed", "criticDeepspeed")


def test_it_has_the_fields_of_the_models() -> None:
    assert set(at(".spec")["properties"]) == keys(Spec) | {*former_names(Spec)}
    assert set(at(".status")["properties"]) == keys(JobStatus)
    for section in SECTIONS:
        assert set(at(f".spec.trainer.{section}")["properties"]) == keys(DeepSpeedConfig)
    assert at(".spec")["required"] == ["algorithm", "steps", "model", "data"]


def test_fields_say_what_the_models_say() -> None:
    assert at(".spec.ppo.klCoefficient") == {
        "description": "KL penalty per nat of divergence from the reference; 0: the job has no reference. "
        "Default: 0.05.",
        "type": "number",
        "minimum": 0,
    }
    assert at(".spec.optimizer.betas")["maxItems"] == at(".spec.optimizer.betas")["minItems"] == 2
    share = {"type": "number", "minimum": 0, "maximum": 1, "exclusiveMaximum": True}
    assert at(".spec.optimizer.betas[]") == share
    assert at(".spec.trainer.deepspeed.zero_optimization.stage")["enum"] == [0, 1, 2, 3]
    assert at(".spec.model.dtype")["enum"] == ["float32", "bfloat16", "float16"]
    assert at(".spec.ppo.gamma")["maximum"] == 1
    assert at(".spec.seed")["exclusiveMaximum"] is True
    assert at(".spec.evaluation")["description"].startswith("Responses to held-out prompts")
    assert at(".spec.suspend")["description"].endswith("Default: false.")


def test_only_what_scale_reads_has_a_default() -> None:
    defaults = {path: node["default"] for path, node in nodes(ROOT) if "default" in node}
    assert defaults == {".spec.generator": {}, ".spec.generator.replicas": 1}


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
            for field in annotation.model_fields.values():
                yield from models(field.annotation)
    else:
        for inner in typing.get_args(annotation):
            yield from models(inner)


def test_a_null_never_says_more_than_nothing() -> None:
    """kubectl drops nulls when it creates an object."""
    for model in models(Spec):
        for name, field in model.model_fields.items():
            if type(None) in typing.get_args(field.annotation):
                assert field.default is None, f"{model.__name__}.{name}"


def test_passed_through_parts_are_open_and_the_rest_is_closed() -> None:
    opened = {path for path, node in nodes(ROOT) if "x-kubernetes-preserve-unknown-fields" in node}
    assert {path for path in opened if f"{TEMPLATE}." not in path} == {
        ".spec.custom.settings",
        ".spec.data.chatTemplateKwargs",
        ".spec.distillation.teachers[]",  # which the operator alone checks
        ".spec.environment",
        ".spec.environment.settings",
        ".spec.model.create.config",
        *(f".spec.{role}.engineArguments" for role in ("generator", "reward", "reference")),
        ".spec.sampling.structuredOutputs.jsonSchema",
        ".spec.trackers[].settings",
        *(
            f".spec.trainer.{section}.{key}"
            for section in SECTIONS
            for key in ("activation_checkpointing", "comms_logger")
        ),
        *(f".spec{role}.pods.template" for role in ("", *(f".{role.value}" for role in Role))),
    }


WAITING = ("OLDEST", "TRAINERIDLE", "GENIDLE", "CONTINUED", "EFFECTIVE")


def test_columns_read_fields_that_exist() -> None:
    columns = VERSION["additionalPrinterColumns"]
    age = [c for c in columns if c["type"] == "date"]
    assert [c["jsonPath"] for c in age] == [".metadata.creationTimestamp"]
    for column in columns:
        path = column["jsonPath"].replace(".roles.generator", ".roles[]")
        path = path.replace('[?(@.type=="Ready")]', "[]")
        assert column in age or at(path)["type"] == column["type"]
    names = [c["name"].upper() for c in columns]
    narrow = [c["name"].upper() for c in columns if not c.get("priority")]
    known = ["PHASE", "REASON", "STEP", "STEPS", "REWARD", "KL", "WEIGHTS", "GEN", "GENREADY"]
    assert narrow == [*known, "GPUS", "RESTARTS", "AGE"]
    assert names[len(narrow) :] == [
        "ALGORITHM",
        "CHECKPOINT",
        "STALENESS",
        *WAITING,
        "TOKENS/S",
        "QUEUE",
        "MESSAGE",
    ]


def test_the_file_writes_what_stands_in_several_places_once() -> None:
    """Each role has pods of its own, with one schema."""
    pods = [at(f".spec.{role}.pods") for role in ("trainer", "generator", "reward", "reference")]
    assert pods == [pods[0]] * 4
    rule = pods[0]["x-kubernetes-validations"][0]["rule"]
    # In spec.pods, and in those of the roles.
    assert document().count(rule) == 1


def test_scale_paths_exist() -> None:
    scale = VERSION["subresources"]["scale"]
    assert [
        at(scale[key])["type"] for key in ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
    ] == [
        "integer",
        "integer",
        "string",
    ]


def test_every_string_list_and_map_is_bounded() -> None:
    bound = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}
    for path, node in nodes(ROOT):
        if path in (".apiVersion", ".kind") or "enum" in node or "properties" in node:
            continue
        if f"{TEMPLATE}." in path and node["type"] == "object":
            continue
        if "type" not in node:
            assert node["maxLength"] == 32, path
            continue
        assert node["type"] not in bound or node[bound[node["type"]]] >= 1, path
        # A server multiplies a rule's worst case by the items there can be, and refuses what costs too much.
        if node["type"] == "array" and any("x-kubernetes-validations" in n for _, n in nodes(node["items"])):
            assert node["maxItems"] <= 32, path


def test_no_field_takes_more_than_the_bounds_for_all() -> None:
    """`oversized` refuses what is beyond those, so a larger one would have no effect."""
    for path, node in nodes(ROOT):
        most = spec_size.MOST_BYTES if path == ".spec.workspace.files[]" else size_limits.TEXT
        assert node.get("maxLength", 0) <= most
        assert node.get("maxItems", 0) <= size_limits.ITEMS
        assert node.get("maxProperties", 0) <= size_limits.KEYS


def test_a_model_in_several_places_describes_its_fields_in_the_uppermost() -> None:
    assert "Default" in at(".spec.pods.sharedMemory")["description"]
    assert at(".spec.pods.gpu.resource")["description"].startswith("The device plugin's resource name")
    for role in ("trainer", "generator", "reward", "reference"):
        inside = f".spec.{role}.pods."
        described = {path for path, n in nodes(ROOT) if path.startswith(inside) and "description" in n}
        assert described == set()
        assert (
            at(f".spec.{role}.pods")["description"]
            == "Settings of this role's pods, merged over `spec.pods`."
        )
    assert not any("title" in node for _, node in nodes(ROOT))


def test_words_that_algorithms_share_stand_in_the_first_and_elsewhere_the_defaults_that_differ() -> None:
    assert at(".spec.ppo.klHorizon")["description"].endswith("adapts to klTarget. Default: 10000.")
    assert "description" not in at(".spec.grpo.klHorizon")
    assert at(".spec.cispo.klCoefficient")["description"] == "Default: 0.0."
    assert at(".spec.ppo.dualClip")["description"].startswith("Bound of the loss")
    assert "description" not in at(".spec.grpo.dualClip")
    assert at(".spec.gspo.clipRatio")["description"].startswith("The response's ratio is clipped")


def test_what_can_be_selected_exists() -> None:
    for field in VERSION["selectableFields"]:
        assert at(field["jsonPath"])["type"] in ("string", "boolean", "integer")


def test_patterns_mean_the_same_to_every_reader() -> None:
    """Rust's, Go's and Python's regular expressions differ on \\w, \\d and the like, and Go has no lookaround."""
    for path, node in nodes(ROOT):
        pattern = node.get("pattern", "")
        assert not any(part in pattern for part in ("\\w", "\\d", "\\s", "\\b", "(?")), path
