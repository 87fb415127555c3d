"""The template of conversations that a manifest gives: inline Jinja, or a file of it."""

import importlib.util

from ..errors.problem import InvalidJob, Problem, show
from ..host.foreign_files import read_regular
from ..host.job_files import located

LARGEST = 64 << 10
"""Maximum size of a template, bytes: Jinja parses this much within a second."""
FIELD = "spec.data.chatTemplate"


class GivenTemplate(str):
    """The text of a template that the manifest gives: the tokenizer's own is another `str`."""

    __slots__ = ()


def given_template(given: str) -> GivenTemplate:
    """The template's text. Raises InvalidJob where the file cannot be read."""
    if "{{" in given or "{%" in given:
        if len(given.encode()) > LARGEST:
            raise InvalidJob([Problem(FIELD, f"is larger than {LARGEST >> 10} KiB; got {show(given)}")])
        return GivenTemplate(given)
    try:
        return GivenTemplate(read_regular(located(given), LARGEST).decode())
    except (OSError, ValueError) as error:
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
    from jinja2.nodes import Filter, Node, Test
    from jinja2.parser import Parser

    class Generation(Extension):
        """`{% generation %}`, by which templates of transformers mark what the assistant wrote."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    # Only parsed: to compile a template is to compute its constants, such as 9**(9**9).
    environment = Environment(autoescape=True, extensions=[loopcontrols, Generation])
    known = {Filter: environment.filters, Test: environment.tests}
    try:
        for node in environment.parse(text).find_all((Filter, Test)):
            assert isinstance(node, Filter | Test)
            if node.name not in known[type(node)]:
                message = f"No {type(node).__name__.lower()} named {node.name!r}"
                raise TemplateSyntaxError(message, node.lineno)
    except TemplateSyntaxError as error:
        syntax_error = str(error.message).rstrip(".")
        return [
            Problem(FIELD, f"is not a Jinja template: line {error.lineno}: {syntax_error}; got {show(given)}")
        ]
    except RecursionError:
        return [Problem(FIELD, f"is not a Jinja template: is nested too deeply; got {show(given)}")]
    return []
