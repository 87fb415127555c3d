"""Reads the arguments of TRL's configuration classes from Python source, by its syntax tree: nothing of it is run."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem, show

from .settings import Configuration, Setting

_ALGORITHMS = {
    "GRPO": "grpo",
    "AsyncGRPO": "grpo",
    "PPO": "ppo",
    "DPO": "dpo",
    "OnlineDPO": "online_dpo",
    "KTO": "kto",
    "SFT": "sft",
    "Reward": "reward",
    "PRM": "process_reward",
    "RLOO": "rloo",
}
"""Begin of the names of TRL's trainers and of their configurations -> our algorithm."""
_SECTIONS = {"ModelConfig": "", "LoraConfig": "lora."}
"""Other classes whose arguments are settings -> the section that they are in."""
_OF_TRAINERS = {
    "model": "model_name_or_path",
    "ref_model": "ref_model",
    "reward_model": "reward_model_path",
    "reward_funcs": "reward_funcs",
    "judge": "judge",
    "train_dataset": "train_dataset",
    "eval_dataset": "eval_dataset",
}
"""Arguments of trainers that are settings, under the names that they have in TRL's command line."""


def read_python(text: str, source: str, algorithm: str = "") -> Configuration:
    """The configuration in a script; `algorithm` chooses one of several.

    Raises:
        InvalidJob: it is not Python, has no such configuration, or several and none is chosen.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else "is nested too deeply, or no text"
        raise InvalidJob([Problem(f"{source}{line}", f"is not valid Python: {message}")]) from None
    calls = [
        (name, call) for call in ast.walk(tree) if isinstance(call, ast.Call) and (name := _called(call))
    ]
    configured = [_ALGORITHMS[name.removesuffix("Config")] for name, _ in calls if _is_of(name, "Config")]
    used = list(dict.fromkeys(configured))
    if not used:
        classes = ", ".join(f"{name}Config" for name in _ALGORITHMS)
        message = (
            f"has no call of {classes}; a script that parses its arguments has them in a command line or YAML"
        )
        raise InvalidJob([Problem(source, message)])
    if len(used) > 1 and algorithm not in used:
        message = f"configures {' and '.join(used)}; choose one with --algorithm"
        raise InvalidJob([Problem(source, message)])
    chosen = algorithm if algorithm in used else used[0]
    constants = _constants(tree)
    settings = [
        setting
        for name, call in calls
        if name in _SECTIONS or _ALGORITHMS.get(name.removesuffix("Config").removesuffix("Trainer")) == chosen
        for setting in _arguments(name, call, constants, source)
    ]
    return Configuration("TRL", tuple(settings), chosen)


def _called(call: ast.Call) -> str:
    """The name of the class of ours to read that is called, without its module; "" for any other call."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name if name in _SECTIONS or _is_of(name, "Config") or _is_of(name, "Trainer") else ""


def _is_of(name: str, kind: str) -> bool:
    return name.endswith(kind) and name.removesuffix(kind) in _ALGORITHMS


def _arguments(name: str, call: ast.Call, constants: Mapping[str, Any], source: str) -> Iterator[Setting]:
    section = _SECTIONS.get(name, "")
    for keyword in call.keywords:
        place = f"{source}:{keyword.value.lineno}"
        if keyword.arg is None:
            yield Setting(f"{name}(**)", None, place, "arguments of a dictionary are not read")
        elif not name.endswith("Trainer"):
            yield _setting(f"{section}{keyword.arg}", keyword.value, constants, place)
        elif keyword.arg in _OF_TRAINERS:
            yield _setting(_OF_TRAINERS[keyword.arg], keyword.value, constants, place)
    if call.args:
        yield Setting(
            f"{name}(...)", None, f"{source}:{call.lineno}", "arguments without a name are not read"
        )


def _setting(name: str, node: ast.expr, constants: Mapping[str, Any], place: str) -> Setting:
    if isinstance(node, ast.Name) and node.id in constants:
        return Setting(name, constants[node.id], place)
    try:
        return Setting(name, ast.literal_eval(node), place)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        text = show(_unparsed(node))
        return Setting(name, None, place, f"an expression, {text}, which is not computed")


def _unparsed(node: ast.expr) -> str:
    try:
        return " ".join(ast.unparse(node).split())
    except RecursionError:
        return "..."


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Names of the module that one statement alone sets, to a literal."""
    stores = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    constants = dict[str, Any]()
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if stores.count(name) == 1:
                literal = _setting(name, value, {}, "")
                if not literal.problem:
                    constants[name] = literal.value
    return constants
