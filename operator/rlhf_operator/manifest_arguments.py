"""FILE, `path=value` and `--set` of every command that reads a manifest. Imports nothing heavy."""

import argparse
from pathlib import Path


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """Adds them; the options have `file` and the overrides in their order, as `set`."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="the manifest in YAML, or package.module:name, a function that returns it",
    )
    parser.add_argument(
        "set",
        nargs="*",
        action="extend",
        default=[],
        type=_override,
        metavar="path=value",
        help="fields to override, such as ppo.klCoefficient=0.1, right after FILE",
    )
    add_set(parser)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Adds `--set` alone."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="path=value",
        help="override a field, such as ppo.klCoefficient=0.1; may be repeated",
    )


def _override(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"must be path=value, such as steps=10; got {text!r}")
    return text
