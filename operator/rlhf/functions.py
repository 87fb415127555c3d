"""Names of a user's functions by which another process imports them, also of those in notebooks."""

import ast
import builtins
import hashlib
import importlib
import inspect
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.redaction import secrets_of
from rlhf_api.spec import Spec
from rlhf_operator.local.modules import missing
from rlhf_operator.local.records.provenance import named_code

FOLDER = Path("rlhf_functions")
"""Folder of saved functions, in the current directory: there every process finds them, as it finds the manifest's other
modules. Not in `runs`, so that `rlhf compare runs/*` names runs alone."""
_HEAD = '"""Saved by rlhf from a function that is in no module."""\n\nfrom __future__ import annotations\n'
_LONGEST_VALUE = 10_000
_DIGITS = 8
_MISSING = object()


def import_path(function: Callable[..., Any]) -> str:
    """`package.module:name` of a function. One of `__main__` or of a notebook's cell is saved first, with the helpers,
    imports and constants that it uses, into a file that is named after its content.

    Raises:
        InvalidJob: another process could not have it, with the reason.
    """
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise _refusal(
            function, f"is {_kind(function)}, which no other process can import; define it by `def`"
        )
    if function.__qualname__ != function.__name__:
        outer = function.__qualname__.removesuffix(f".{function.__name__}").removesuffix(".<locals>")
        variables = ", ".join(function.__code__.co_freevars)
        uses = f" and uses its {variables}" if variables else ""
        raise _refusal(
            function, f"is defined inside {outer}{uses}; define it at the top of a cell or of a file"
        )
    if function.__module__ != "__main__":
        path = f"{function.__module__}:{function.__name__}"
        if reason := missing(path):
            raise _refusal(function, reason)
        return path
    text = "\n".join([_HEAD, *_definitions(function, set())])
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    file = FOLDER / f"{function.__name__}_{digest}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    return f"{'.'.join(file.with_suffix('').parts)}:{function.__name__}"


def saved_files(spec: Spec) -> list[str]:
    """Files of the saved functions that a job names."""
    modules = dict.fromkeys(path.partition(":")[0] for _, path in named_code(spec))
    files = (Path(*module.split(".")).with_suffix(".py") for module in modules)
    return [str(file) for file in files if file.is_relative_to(FOLDER)]


def _definitions(function: FunctionType, names: set[str]) -> Iterator[str]:
    """Statements that define the function, after those that it needs; `names`: of what was defined before."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise _refusal(
            function, "has no source that can be read; define it in a file or in a notebook's cell"
        ) from None
    names.add(function.__name__)
    for name in sorted(set(_global_names(source)) - names):
        value = function.__globals__.get(name, _MISSING)
        if _is_builtin(name, value):
            continue
        if isinstance(value, FunctionType) and value.__module__ == "__main__":
            if value.__name__ != name or value.__qualname__ != name:
                raise _refusal(
                    function, f"uses {name}, which is no function that a cell defines by this name"
                )
            yield from _definitions(value, names)
        else:
            names.add(name)
            if isinstance(value, ModuleType):
                yield from (f"import {module}" for module in dict.fromkeys(_submodules(source, name, value)))
            yield _definition(function, name, value)
    yield f"\n{source}"


def _global_names(source: str) -> Iterator[str]:
    """Names that a function's source takes from its module, wherever in it; not those of annotations, which a saved
    module does not evaluate."""
    tables = [symtable.symtable(_HEAD + source, "function", "exec")]
    for table in tables:
        tables += table.get_children()
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() if is_module else symbol.is_global():
                yield symbol.get_name()


def _submodules(source: str, name: str, module: ModuleType) -> Iterator[str]:
    """Modules below one of that name which the source goes through, such as `xml.etree` of `xml.etree.ElementTree`:
    another process has them only if they are imported too."""
    for node in ast.walk(ast.parse(source)):
        attributes = list[str]()
        while isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        path = module.__name__
        for attribute in attributes if isinstance(node, ast.Name) and node.id == name else ():
            path = f"{path}.{attribute}"
            if not isinstance(sys.modules.get(path), ModuleType):
                break
            yield path


def _definition(function: FunctionType, name: str, value: Any) -> str:
    """A statement that gives a name its value in another process."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module and qualified and module != "__main__":
        if getattr(sys.modules.get(module), qualified, None) is value:
            return f"from {module} import {qualified} as {name}"
    elif _is_literal(value):
        if secrets_of({name: str(value)}):
            reason = f"uses {name}, which looks like a secret, and would be saved in clear; read it from os.environ"
            raise _refusal(function, f"{reason} inside the function")
        return f"{name} = {value!r}"
    if value is _MISSING:
        raise _refusal(function, f"uses {name}, which is not defined")
    raise _refusal(
        function,
        f"uses {name}, which is {_kind(value)} and is not saved with it; make it inside the function, or move both "
        "into a file",
    )


def _is_builtin(name: str, value: Any) -> bool:
    """True for a name that a module has from Python; IPython's `open` wraps that of Python."""
    builtin = getattr(builtins, name, None)
    return builtin is not None and (value is _MISSING or inspect.unwrap(value) is builtin)


def _kind(value: Any) -> str:
    if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
        return "a lambda"
    return "a class" if isinstance(value, type) else f"of type {type(value).__name__}"


def _is_literal(value: Any) -> bool:
    text = repr(value)
    try:
        return len(text) <= _LONGEST_VALUE and bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _refusal(function: Callable[..., Any], reason: str) -> InvalidJob:
    return InvalidJob([Problem(getattr(function, "__name__", type(function).__name__), reason)])
