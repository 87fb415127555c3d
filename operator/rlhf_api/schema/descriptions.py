"""Descriptions of the models' fields: the docstring below each, read from the source only where a schema is made.

With `use_attribute_docstrings` Pydantic would read every model's source in every process: 0.1 processor seconds of each
start, and 0.2 s where torch is imported before.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from ..field_types import Frozen, former_names


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """By field, its docstring in the class that declares it last."""
    docstrings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Frozen):
            declared = inspect.get_annotations(base)
            docstrings = {name: words for name, words in docstrings.items() if name not in declared}
            docstrings |= _docstrings(base.__module__).get(base.__name__, {})
    return docstrings


class Described(GenerateJsonSchema):
    """Pydantic's JSON schema, with the fields' descriptions."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made, model = super().model_schema(schema), schema["cls"]
        for name, words in descriptions(model).items():
            made["properties"][model.model_fields[name].alias or name]["description"] = words
        for former, name in former_names(model).items():
            key = model.model_fields[name].alias or name
            schema_keys = {
                k: v for k, v in made["properties"][key].items() if k not in ("default", "description")
            }
            made["properties"][former] = {
                **schema_keys,
                "description": f"Former name of `{key}`.",
                "deprecated": True,
            }
        return made


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """By class of a module and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_fields(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, inspect.cleandoc(words)
