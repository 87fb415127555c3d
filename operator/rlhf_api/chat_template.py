"""The template of conversations that a manifest gives: inline Jinja, or a file of it."""

import importlib.util
from pathlib import Path

from .problems import InvalidJob, Problem, show

FIELD = "spec.data.chatTemplate"


def given_template(given: str) -> str:
    """The template's text. Raises InvalidJob where the file cannot be read."""
    if "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"is neither a template nor a file that can be read: {error}; got {show(given)}"
        raise InvalidJob([Problem(FIELD, message)]) from None


def template_problems(given: str) -> list[Problem]:
    """Problems of a template that cannot be read or is not valid Jinja, with the line; the syntax is checked only where
    Jinja is installed, as it is beside torch."""
    try:
        text = given_template(given)
    except InvalidJob as error:
        return list(error.problems)
    if importlib.util.find_spec("jinja2") is None:
        return []
    from jinja2 import Environment, TemplateSyntaxError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser

    class Generation(Extension):
        """`{% generation %}`, by which templates of transformers mark what the assistant wrote."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    try:
        Environment(autoescape=True, extensions=[loopcontrols, Generation]).from_string(text)
    except TemplateSyntaxError as error:
        why = str(error.message).rstrip(".")
        return [Problem(FIELD, f"is not a Jinja template: line {error.lineno}: {why}; got {show(given)}")]
    return []
