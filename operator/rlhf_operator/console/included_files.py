"""`--include`: reads files of this machine into the files that a job carries."""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import CARRIED, PATTERNS
from rlhf_api.host.foreign_files import read_regular
from rlhf_api.manifest.spec_size import MOST_BYTES


def add_include(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--include",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="put these files, such as rewards.py data.jsonl, into spec.workspace.files under the names given here",
    )


def read_included(names: Iterable[str]) -> dict[str, str]:
    """The texts by their names. Raises InvalidJob with every file that cannot travel with a job."""
    texts, problems = dict[str, str](), list[Problem]()
    for name in (Path(given).as_posix() for given in names):
        try:
            texts[name] = _read(name)
        except InvalidJob as error:
            problems += error.problems
    if problems:
        raise InvalidJob(problems)
    return texts


def _read(name: str) -> str:
    where = f"--include {name}"
    if not re.fullmatch(CARRIED, name):
        message = f"{PATTERNS[CARRIED]}; call this from the folder that the manifest's paths are relative to"
        raise InvalidJob([Problem(where, message)])
    try:
        return read_regular(Path(name), MOST_BYTES).decode()
    except UnicodeDecodeError:
        message = "is not UTF-8 text; put it on a volume or into a store"
    except IsADirectoryError:
        message = "is a directory; name the files in it"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except ValueError as error:
        message = f"{error}; put it on a volume or into a store"
    raise InvalidJob([Problem(where, message)])
