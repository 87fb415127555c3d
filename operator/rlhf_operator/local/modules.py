"""Objects that a manifest names as `package.module:name`, looked up without importing: that would run a user's code."""

import ast
import difflib
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from rlhf_api.host.job_files import as_named, located, module_places

CALLED_WITH = ("prompts", "responses", "rows")
"""Arguments of a reward function, in order."""


def missing(name: str) -> str:
    """The missing part of `package.module:name`, looked for among installed modules and in the current directory;
    empty if none is missing, or if only running the module would tell."""
    module, _, attribute = name.partition(":")
    try:
        file, body = _source(module)
    except LookupError as error:
        return str(error)
    defined = set(_defined(body))
    if file is None or attribute in defined or defined & {"*", "__getattr__"}:
        return ""
    close = difflib.get_close_matches(attribute, defined, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    here = Path(*module.split(".")).with_suffix(".py")
    if located(str(here)).is_file() and not located(str(here)).samefile(file):
        hint = f"; {here} is not used, since an installed module has its name: rename it"
    return f"{as_named(file)} defines no {attribute!r}{hint}"


def unscoring(name: str) -> str:
    """Reason why `package.module:name` cannot be called as a reward function, by its parameters; empty if it can, or if
    its module does not define it by exactly one plain `def`."""
    module, _, attribute = name.partition(":")
    _, body = _source(module)
    functions = [each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [each for each in functions if each.name == attribute and not each.decorator_list]
    if len(named) != 1 or [*_defined(body)].count(attribute) != 1:
        return ""
    (function,) = named
    expected = f"a reward function is `def {attribute}({', '.join(CALLED_WITH)})`, of the whole batch at once"
    if isinstance(function, ast.AsyncFunctionDef):
        return f"is an async function; {expected}"
    return "" if _takes(function.args) else f"has the parameters ({ast.unparse(function.args)}); {expected}"


def unplayable(name: str) -> str:
    """Reason why `package.module:name` cannot be an environment, by what its module defines: a function, or a class
    without `reset`; empty if it can, or if only running the module would tell."""
    module, _, attribute = name.partition(":")
    _, body = _source(module)
    expected = "an environment is a class with reset, and step or tools"
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == attribute:
            return f"is a function; {expected}"
        if isinstance(each, ast.ClassDef) and each.name == attribute:
            inherits = each.bases or each.decorator_list or each.keywords
            return "" if inherits or "reset" in _defined(each.body) else f"has no reset; {expected}"
    return ""


def _takes(parameters: ast.arguments) -> bool:
    """True if the parameters take `CALLED_WITH`; `tokens` is given by name to those that want it."""
    positional = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    required = positional[: len(positional) - len(parameters.defaults)]
    enough = parameters.vararg is not None or len(positional) >= len(CALLED_WITH)
    named = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    more = {*required[len(CALLED_WITH) :], *(each.arg for each, default in named if default is None)}
    return enough and more <= {"tokens"}


def source_file(module: str) -> Path | None:
    """The file of a module; None if it is not written in Python, is not there or cannot be read."""
    try:
        return _source(module)[0]
    except LookupError:
        return None


def _source(module: str) -> tuple[Path | None, Sequence[ast.stmt]]:
    """The file of a module and its statements; (None, ()) for one that is not written in Python. Raises LookupError
    if there is none or it cannot be read."""
    module_spec: ModuleSpec | None = None
    within: Sequence[str] | None = module_places()
    for part in module.split("."):
        module_spec = None if within is None else PathFinder.find_spec(part, within)
        if module_spec is None:
            place = f"in {Path.cwd()} or installed" if part == module.partition(".")[0] else f"for {module!r}"
            raise LookupError(f"no module {part!r} {place}")
        within = module_spec.submodule_search_locations
    if module_spec is None or module_spec.origin is None or not module_spec.origin.endswith(".py"):
        return None, ()
    try:
        return Path(module_spec.origin), ast.parse(Path(module_spec.origin).read_bytes()).body
    except (OSError, SyntaxError, ValueError) as error:
        file = as_named(Path(module_spec.origin))
        raise LookupError(f"{file} cannot be read as Python: {error}") from None


def _defined(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that statements of a module define, whichever of their branches run."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (each.asname or each.name.partition(".")[0] for each in names)
            case _:
                for node in ast.iter_child_nodes(statement):
                    if isinstance(node, ast.stmt):
                        yield from _defined([node])
                    elif isinstance(node, ast.ExceptHandler | ast.match_case):
                        yield from _defined(node.body)
                    else:
                        yield from (
                            each.id
                            for each in ast.walk(node)
                            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                        )
