"""Objects that a manifest names as `package.module:name`, looked up without importing: that would run a user's code."""

import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def missing(name: str) -> str:
    """The missing part of `package.module:name`, looked for in the current directory and among installed modules;
    empty if none is missing, or if only running the module would tell."""
    module, _, wanted = name.partition(":")
    found: ModuleSpec | None = None
    within: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    for part in module.split("."):
        found = None if within is None else PathFinder.find_spec(part, within)
        if found is None:
            place = f"in {Path.cwd()} or installed" if part == module.partition(".")[0] else f"for {module!r}"
            return f"no module {part!r} {place}"
        within = found.submodule_search_locations
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return ""
    try:
        defined = set(_defined(ast.parse(Path(found.origin).read_bytes()).body))
    except (OSError, SyntaxError, ValueError) as error:
        return f"{found.origin} cannot be read as Python: {error}"
    if wanted in defined or defined & {"*", "__getattr__"}:
        return ""
    close = difflib.get_close_matches(wanted, defined, n=1)
    return f"{found.origin} defines no {wanted!r}" + (f"; did you mean {close[0]!r}?" if close else "")


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
