"""Subcommands of the command line. Imports nothing heavy."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from rlhf_api.host.printing import clean

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Result of `ArgumentParser.add_subparsers`, which is generic for type checkers alone."""


class CommandParser(argparse.ArgumentParser):
    """A parser, as are those of its subcommands, that quotes arguments without control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(clean(message))


class GroupedParser(CommandParser):
    """A parser whose help lists its commands under headings, `groups`; what they lack comes last."""

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._groups = groups
        self.commands: Commands = self.add_subparsers(
            dest="command", metavar="COMMAND", parser_class=CommandParser
        )

    def format_help(self) -> str:
        rest = {action.dest: action for action in self.commands._get_subactions()}
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        listed = {title: [rest.pop(name) for name in names] for title, names in self._groups.items()}
        options = [action for action in self._actions if action is not self.commands]
        for title, actions in {**listed, "more": [*rest.values()], "options": options}.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def add_command(
    commands: Commands, name: str, help: str, parents: Sequence[argparse.ArgumentParser] = ()
) -> argparse.ArgumentParser:
    """Adds a subcommand whose `help`, its line in the parser's own help, also heads the help of the subcommand."""
    return commands.add_parser(name, help=help, parents=parents, description=f"{help[0].upper()}{help[1:]}.")
