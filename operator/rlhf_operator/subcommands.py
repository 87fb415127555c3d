"""Subcommands of the command line. Imports nothing heavy."""

import argparse
from collections.abc import Sequence
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Result of `ArgumentParser.add_subparsers`, which is generic for type checkers alone."""


def add_command(
    commands: Commands, name: str, help: str, parents: Sequence[argparse.ArgumentParser] = ()
) -> argparse.ArgumentParser:
    """Adds a subcommand whose `help`, its line in the parser's own help, also heads the help of the subcommand."""
    return commands.add_parser(name, help=help, parents=parents, description=f"{help[0].upper()}{help[1:]}.")
