"""Names of options and models of the installed vLLM, read from its source; importing it would take seconds.

Empty where vLLM is not installed; then vLLM's own parser says it, in the role that starts it.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from pydantic import JsonValue

from ...contract.teachers import role_field
from ...errors.problem import Problem, show
from ...errors.similar import closest
from ...estimate.serving import engine_section
from ...host.foreign_files import READ_ERRORS, read_json
from ...roles import Role
from ...spec import Spec

_OPTIONS = ("engine/arg_utils.py", "entrypoints/*/cli_args.py")
_MODELS = "model_executor/models/registry.py"
_GENERATING = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
_PLUGINS = "vllm.general_plugins"
_CAUSAL = "models/auto/modeling_auto.py"
"""File where transformers names its classes; vLLM runs any causal language model of these by transformers' own code."""


def engine_problems(spec: Spec, role: Role, where: str, model: str) -> list[Problem]:
    """Problems of a role whose processes run vLLM: of its options, and of its model, which the field `where` names, if
    it generates and the model is a local directory of a class that is not the job's own."""
    option_problems = list(
        _unknown_options(role_field(spec, role), engine_section(spec, role).engine_arguments)
    )
    checked = role.row.work != "score" and not spec.model.architectures
    return [*option_problems, *_unknown_architecture(where, Path(model))] if checked else option_problems


def _unknown_options(section: str, arguments: Mapping[str, JsonValue]) -> Iterator[Problem]:
    """Options in `engineArguments` of a role's section that vLLM does not have."""
    known = _options()
    for key in arguments if known else ():
        name = key.partition(".")[0].replace("_", "-").strip("-")  # compilation-config.mode
        if name not in known and name.removeprefix("no-") not in known:
            close = closest(key, sorted(known))
            meant = f"did you mean {close}?" if close else "`vllm serve --help=all` lists all"
            message = f"vLLM has no such option; {meant}; got {show(arguments[key])}"
            yield Problem(f"{section}.engineArguments.{key}", message)


def _unknown_architecture(where: str, directory: Path) -> Iterator[Problem]:
    """A policy in a local directory whose class neither vLLM nor transformers has for text generation. Code of its own
    (`auto_map`) and plugins of vLLM beside ours may bring any."""
    try:
        config = read_json(directory / "config.json")
        named = [str(name) for name in config.get("architectures") or ()]
    except READ_ERRORS:
        return  # reported when the model is loaded
    known, plugins = _generating(), {point.module.partition(".")[0] for point in entry_points(group=_PLUGINS)}
    if not named or not known or plugins - {"vllm", "rlhf_trainer"} or "auto_map" in config:
        return
    if not any(name in known or (name.endswith("ForCausalLM") and name in _transformers()) for name in named):
        message = (
            f"its config.json names {', '.join(named)}, with which vLLM does not generate; use another model"
        )
        yield Problem(where, f"{message}; got {str(directory)!r}")


@cache
def _options() -> frozenset[str]:
    option, names = re.compile(r"--([a-z0-9-]+)"), set[str]()
    for node in _nodes("vllm", *_OPTIONS):
        if isinstance(node, ast.Constant) and (named := option.fullmatch(str(node.value))):
            names.add(named[1])
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names |= {name.id.replace("_", "-") for name in fields if isinstance(name, ast.Name)}
    return frozenset(names)


@cache
def _generating() -> frozenset[str]:
    architectures = set[str]()
    for node in _nodes("vllm", _MODELS):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            name = node.targets[0]
            if isinstance(name, ast.Name) and name.id in _GENERATING:
                architectures |= {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    return frozenset(architectures)


@cache
def _transformers() -> frozenset[str]:
    return frozenset(
        str(node.value) for node in _nodes("transformers", _CAUSAL) if isinstance(node, ast.Constant)
    )


def _nodes(package: str, *patterns: str) -> Iterator[ast.AST]:
    """Nodes of the syntax trees of a package's files; none if it is not installed."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in patterns:
            for file in Path(folder).glob(pattern):
                yield from ast.walk(ast.parse(file.read_bytes()))
