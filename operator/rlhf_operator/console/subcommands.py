"""Subcommands of the command line. Imports nothing heavy."""

import argparse
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from rlhf_api.host.printing import clean

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Result of `ArgumentParser.add_subparsers`, which is generic for type checkers alone."""


class CommandParser(argparse.ArgumentParser):
    """A parser, as are those of its subcommands, that quotes arguments without control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(clean(message))


def add_command(
    commands: Commands, name: str, help: str, parents: Sequence[argparse.ArgumentParser] = ()
) -> argparse.ArgumentParser:
    """Adds a subcommand whose `help`, its line in the parser's own help, also heads the help of the subcommand."""
    return commands.add_parser(name, help=help, parents=parents, description=f"{help[0].upper()}{help[1:]}.")
