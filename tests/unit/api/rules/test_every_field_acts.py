"""Every field of the manifest is read by code that does something with it: none is accepted and then forgotten.

Reads are found in the syntax trees of all that runs a job; rules, which say what a field may be, do not count. Where
unrelated sections have a field of one name, the module that reads it has to name the section, or its class, too.
"""

import ast
import inspect
import types
import typing
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from rlhf_api.manifest.runtime import RuntimeSpec
from rlhf_api.spec import Spec

ROOT = Path(__file__).parents[4]
RULES = ("errors", "manifest", "rules", "schema")
"""Folders of the contract."""
API = ROOT / "operator" / "rlhf_api"
PERMITTED = API / "rules" / "engines" / "arguments.py"
"""The rules with a field of their own, `untriedEngineArguments`."""
HANDED_ON = {"deepspeed": "DeepSpeed's own configuration", "tolerations": "as Kubernetes spells them"}
"""Sections that another program reads, as a whole."""

Place = tuple[str, ...]


def models(annotation: object) -> Iterator[type[BaseModel]]:
    """The models that a field holds, in tuples, unions and dictionaries too."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for inner in typing.get_args(annotation):
        yield from models(inner)


def leaves(model: type[BaseModel], where: Place = ()) -> Iterator[tuple[Place, str]]:
    """Python names on the way to each field that holds no model, and the class that declares it."""
    for name, field in model.model_fields.items():
        if name in HANDED_ON:
            yield (*where, name), model.__name__
            continue
        inner = list(models(field.annotation))
        for section in inner:
            yield from leaves(section, (*where, name))
        if not inner:
            declares = [base for base in model.__mro__ if name in inspect.get_annotations(base)]
            yield (*where, name), (declares[-1] if declares else model).__name__


def reads(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that are read, names of classes, and text: `getattr` and tables name fields so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def acting() -> dict[str, set[str]]:
    """The names that each module reads which is not about rules alone."""
    files = [*(ROOT / "operator").rglob("*.py"), *(ROOT / "trainer_image").rglob("*.py")]
    return {
        str(file.relative_to(ROOT)): set(reads(ast.parse(file.read_text(encoding="utf-8"))))
        for file in files
        if not (file.is_relative_to(API) and file.relative_to(API).parts[0] in RULES and file != PERMITTED)
    }


def unread(fields: list[tuple[Place, str]], modules: dict[str, set[str]]) -> list[str]:
    """Places of the fields that nothing reads."""
    declared = defaultdict(set)
    for (*_, name), owner in fields:
        declared[name].add(owner)
    missing = []
    for place, owner in fields:
        *sections, name = place
        knows = {owner, *sections[-1:]} if len(declared[name]) > 1 and sections else set()
        if not any(name in names and (not knows or knows & names) for names in modules.values()):
            missing.append(".".join(place))
    return missing


def test_every_field_is_read_by_code_that_acts():
    fields = [*leaves(Spec), *leaves(RuntimeSpec)]
    assert len(fields) > 300
    assert unread(fields, acting()) == []


def test_a_field_that_nothing_reads_is_noticed():
    fields = [(("weights", "timeout_seconds"), "Weights"), (("other", "timeout_seconds"), "Other")]
    assert unread(fields, {"a.py": {"timeout_seconds", "weights"}}) == ["other.timeout_seconds"]
    assert unread(fields[:1], {"a.py": {"weights"}}) == ["weights.timeout_seconds"]
