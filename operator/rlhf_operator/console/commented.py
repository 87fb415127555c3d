"""YAML with comments beside its fields, for manifests that people go on writing."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_api.host.strict_yaml import dumped

from .text import one_line

_WIDEST = 44
"""Column behind which comments no longer stand below each other."""


def commented(document: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """The document as YAML; `comments`: by the path of a field, such as `spec.steps`, what to say beside it."""
    lines = [*_lines(document, comments, "")]
    width = max((len(text) for text, comment in lines if comment and len(text) <= _WIDEST), default=0)
    return "".join(f"{text:<{width}}  # {one_line(c)}\n" if c else f"{text}\n" for text, c in lines)


def _lines(node: Mapping[str, Any], comments: Mapping[str, str], above: str) -> Iterator[tuple[str, str]]:
    """Each line with its comment."""
    for key, value in node.items():
        comment = comments.get(f"{above}{key}", "")
        if isinstance(value, Mapping) and value:
            yield dumped({key: None}).removesuffix(" null"), comment
            for text, inner in _lines(value, comments, f"{above}{key}."):
                yield f"  {text}", inner
            continue
        first, *rest = dumped({key: value}).split("\n")
        if rest and isinstance(value, str):  # within a text of several lines there are no comments
            yield from [(f"# {one_line(comment)}", "")] if comment else []
            comment = ""
        yield first, comment
        yield from ((text, "") for text in rest)
