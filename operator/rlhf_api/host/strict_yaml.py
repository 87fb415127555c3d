"""YAML as Kubernetes reads it, but strict: duplicate keys are an error, `1e-6` is a number, dates are text.

`${NAME}` and `${NAME:default}` in values are replaced by environment variables if the caller passes these, but not in
the files that a job carries.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ..errors.problem import InvalidJob, Problem, first, path, show
from .printing import clean
from .variables import NO_ENVIRONMENT

_DEEPEST = 64
_INT64 = 2**63
_MOST_VALUES = 1_000_000
_MOST_MERGED = 10_000
_MERGE = "tag:yaml.org,2002:merge"
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERBATIM = ("workspace", "files")
"""Keys above texts that no message quotes, and in which `$` is an ordinary character: files, which have to be the same
for `kubectl apply`."""
_ENDLESS = "is nested too deeply, or contains itself"
_HALF = re.compile("[\ud800-\udfff]")
"""Unpaired surrogates, which no Unicode encoding can write."""


class _Loader(yaml.SafeLoader):
    """YAML 1.1 loader with the surprising types removed."""

    variables: Mapping[str, str] | None = None
    """Values of `${NAME}`; if None, `$` is an ordinary character."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source = source
        self._keys: list[str] = []
        """Keys above the node that is being read."""
        self.problems: list[Problem] = []

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        # `1:30` is text to Kubernetes' reader, and 90 to YAML 1.1.
        if kind is yaml.ScalarNode and ":" in value:
            implicit = (False, implicit[1])
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # An alias yields its anchor's node again, whose variables are replaced already.
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._keys.append(index.value if isinstance(index, yaml.ScalarNode) else "")
        node = super().compose_node(parent, index)
        is_verbatim = (*self._keys[-3:-1],) == _VERBATIM
        self._keys.pop()
        is_key = isinstance(parent, yaml.MappingNode) and index is None
        if self.variables is None or is_key or not isinstance(event, yaml.ScalarEvent) or node is None:
            return node
        if is_verbatim:
            return node
        text = self._expanded(node.value, self.variables, node.start_mark)
        if text != node.value:
            node.value = text
            if event.implicit[0]:  # neither quoted nor tagged: a number stays a number
                node.tag = self.resolve(yaml.ScalarNode, text, (True, False))
        return node

    def _expanded(self, text: str, variables: Mapping[str, str], mark: yaml.Mark) -> str:
        where = f"{self.source}:{mark.line + 1}:{mark.column + 1}"

        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name, colon, default = match[1].partition(":")
            if not _NAME.fullmatch(name) or not match[0].endswith("}"):
                message = (
                    f"must be ${{NAME}} or ${{NAME:default}}, or $${{ for the text ${{; got {show(text)}"
                )
                self.problems.append(Problem(where, message))
            elif name in variables:
                return variables[name]
            elif not colon:
                message = f"the environment variable {name} is not set; set it, or write ${{{name}:default}}"
                if variables is NO_ENVIRONMENT:
                    message = (
                        f"takes the environment variable {name}, which --no-env refuses; write its value"
                    )
                self.problems.append(Problem(where, message))
            return default

        return _VARIABLE.sub(value, text)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # PyYAML copies merged keys, and those of merges of merges again, before it drops what is there twice.
        merged = [value for key, value in node.value if key.tag == _MERGE]
        keys = 0
        for value in merged:
            for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(each, yaml.MappingNode):
                    self.flatten_mapping(each)
                    keys += len(each.value)
                if keys > _MOST_MERGED:
                    message = f"<< merges more than {_MOST_MERGED:,} keys into one object; write them out"
                    raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            # Except the merge key, which may occur several times.
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in keys:
                    message = f"the key {show(key.value)} appears twice in one object; remove one"
                    raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes all text that `_Loader`, and Kubernetes, would read as another type."""


# YAML 1.1 requires a dot in a float, so `1e-6`, the usual way to write a learning rate, would be a string.
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )


def dumped(document: Any) -> str:
    """A document as YAML that `documents` reads back as it was, without a line end at its end. What would be
    printed in another way is escaped."""
    plain = _yaml(document, allow_unicode=True)
    return plain if clean(plain) == plain else _yaml(document, allow_unicode=False)


def _yaml(document: Any, *, allow_unicode: bool) -> str:
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=110)
    return str(text).rstrip("\n")


def documents(text: str, source: str, variables: Mapping[str, str] | None = None) -> list[Any]:
    """The YAML documents of a text, empty ones left out; `variables` are the values of `${NAME}` in it.

    Raises:
        InvalidJob: invalid YAML, or unset variables; `source` and the line say where.
    """
    try:
        loader = _Loader(text, source)
    except yaml.YAMLError as error:
        at = getattr(error, "position", 0)
        line = text.count("\n", 0, at) + 1
        raise InvalidJob(
            [Problem(f"{source}:{line}", "is not valid YAML: a character that it does not allow")]
        ) from None
    try:
        loader.variables = variables
        contents = []
        while loader.check_data():  # type: ignore[no-untyped-call]
            contents.append(loader.get_data())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        # Without what it quotes: the file may be one that is no manifest.
        problem = re.sub(r"\b(alias|anchor|handle|tag) '.*'", r"\1", str(getattr(error, "problem", "") or ""))
        message = f"is not valid YAML: {problem or 'a character that it does not allow'}"
        if mark and variables is not None and "${" in [*text.splitlines(), ""][mark.line]:
            message += "; within [...] and {...} put ${NAME} in quotes, or write the list with dashes"
        raise InvalidJob([Problem(where, message)]) from None
    except RecursionError:
        raise InvalidJob([Problem(source, f"is not valid YAML: {_ENDLESS}")]) from None
    except (ValueError, LookupError, AttributeError):
        # PyYAML raises any of these for a value that does not fit its tag.
        line = loader.line + 1
        raise InvalidJob(
            [Problem(source, f"is not valid YAML: a value at line {line} or above does not fit its type")]
        ) from None
    if loader.problems:
        raise InvalidJob(loader.problems)
    if sum(_values(document, {}) for document in contents) > _MOST_VALUES:
        message = f"holds more than {_MOST_VALUES:,} values, as aliases of aliases make them; write them out"
        raise InvalidJob([Problem(source, message)])
    if endless := first(each for d in contents for each in not_json(d) if each.message == _ENDLESS):
        raise InvalidJob(endless)
    return [d for d in contents if d is not None]


def _values(node: Any, counted: dict[int, int]) -> int:
    """Number of values in a document with its aliases expanded; each object is visited once."""
    if not isinstance(node, Mapping | list):
        return 1
    if id(node) not in counted:
        counted[id(node)] = 1  # while it is under way: it may contain itself
        inner = node.values() if isinstance(node, Mapping) else node
        counted[id(node)] = 1 + sum(_values(value, counted) for value in inner)
    return counted[id(node)]


def not_json(
    node: Any, location: tuple[int | str, ...] = (), above: tuple[int, ...] = ()
) -> Iterator[Problem]:
    """Problems of values that JSON or the operating system cannot represent: infinities, sets, cycles, NUL."""
    if len(above) > _DEEPEST or id(node) in above:
        yield Problem(path(location[:4]), _ENDLESS)
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if isinstance(key, str):
                yield from _not_text(key, (*location, key))
                yield from not_json(value, (*location, key), (*above, id(node)))
            else:
                yield Problem(
                    path((*location, str(key))), f"a key must be text; put it in quotes; got {key!r}"
                )
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from not_json(value, (*location, i), (*above, id(node)))
    elif isinstance(node, str):
        yield from _not_text(node, location)
    elif isinstance(node, float) and not math.isfinite(node):
        yield Problem(path(location), f"must be finite; got {node}")
    elif isinstance(node, int) and not -_INT64 <= node < _INT64:
        yield Problem(path(location), "must fit in 64 bits; got a whole number beyond that")
    elif not isinstance(node, int | float | None):
        yield Problem(path(location), f"{type(node).__name__} is not a JSON value; got {show(node)}")


def floats_of_server(node: Any, depth: int = 0) -> Any:
    """The node with whole numbers beyond 64 bits as floats, which they are in an API server: it writes those below 1e21
    without an exponent. What is too deep for `not_json` stays."""
    if isinstance(node, Mapping) and depth <= _DEEPEST:
        return {key: floats_of_server(value, depth + 1) for key, value in node.items()}
    if isinstance(node, list) and depth <= _DEEPEST:
        return [floats_of_server(value, depth + 1) for value in node]
    beyond = isinstance(node, int) and not -_INT64 <= node < _INT64
    return float(node) if beyond and abs(node) < 10**21 else node


def _not_text(text: str, location: tuple[int | str, ...]) -> Iterator[Problem]:
    got = "" if location[-3:-1] == _VERBATIM else f"; got {show(text)}"
    if "\0" in text:
        yield Problem(path(location), f"must hold no NUL character{got}")
    elif _HALF.search(text):
        yield Problem(path(location), f"must be Unicode text{got}")
