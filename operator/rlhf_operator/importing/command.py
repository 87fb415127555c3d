"""`rlhf import`: prints, or writes, the manifest of another system's configuration, and what each name became."""

import argparse
import sys
from pathlib import Path

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.errors.no_fields import ANSWERS
from rlhf_api.errors.other_names import OTHER_NAMES
from rlhf_api.errors.problem import InvalidJob, Problem, show
from rlhf_api.errors.similar import plain
from rlhf_api.host.redaction import MASK, is_secret, redacted

from ..console.commented import commented
from ..console.exits import print_line
from ..console.subcommands import Commands, add_command
from ..console.text import columns, one_line
from .carry import Became, Imported, carry
from .read import read
from .settings import Configuration

MOST = 1000
"""Maximum number of settings."""


def add_import(commands: Commands) -> None:
    parser = add_command(
        commands, "import", help="make a manifest of a configuration of TRL, verl, OpenRLHF or prime-rl"
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a script or YAML file of TRL, a shell script with a command line of verl, OpenRLHF or TRL, or a TOML "
        "file of prime-rl; it is read, never run",
    )
    parser.add_argument(
        "--algorithm", choices=ALGORITHMS, metavar="NAME", help="the algorithm, if the file does not say it"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="write the manifest to this file; default: print it"
    )
    parser.add_argument("--overwrite", action="store_true", help="write over OUT if it is there")


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    out: Path | None = options.output
    if out is not None and out.exists() and not options.overwrite:
        raise InvalidJob([Problem(str(out), "is there already; add --overwrite, or name another file")])
    configuration = read(options.file, options.algorithm or "")
    if len(configuration.settings) > MOST:
        raise InvalidJob(
            [Problem(str(options.file), f"sets more than {MOST:,} names, as no configuration does")]
        )
    imported = carry(configuration, options.algorithm or "")
    if not any(row.fields for row in imported.rows):
        message = "sets nothing that a manifest has; `rlhf import --help` says what is read"
        raise InvalidJob([Problem(str(options.file), message)])
    text = _manifest(options.file, configuration, imported)
    if out is None:
        print_line(text.rstrip("\n"), sys.stdout)
    else:
        out.write_text(text)
    report = sys.stderr if out is None else sys.stdout
    for line in columns([_cells(row) for row in imported.rows], gap=2):
        print_line(line, report)
    for problem in imported.problems:
        print_line(f"missing: {problem}", report)
    if out is not None:
        print_line(f"wrote {out}", report)
    return 0


def _manifest(file: Path, configuration: Configuration, imported: Imported) -> str:
    missing = [f"#   {one_line(str(problem))}" for problem in imported.problems]
    head = (
        f"# {one_line(str(file))}, of {configuration.system}, by `rlhf import`. Beside a field stands the name that it",
        "# comes from; what the file leaves out has the defaults of this system.",
        *(["# Missing:", *missing] if missing else []),
    )
    return "\n".join(head) + "\n" + commented(imported.document, imported.comments)


def _cells(row: Became) -> tuple[str, str, str]:
    """Place, setting, and what it became."""
    setting, fields = row.setting, "; ".join(f"{field}: {show(value)}" for field, value in row.fields)
    value = "" if setting.problem else f"={_shown(setting.name, setting.value)}"
    return setting.place, f"{setting.name}{value}", "; ".join(filter(None, (fields, row.text)))


def _shown(name: str, value: object) -> str:
    key = name.rpartition(".")[2]
    is_known = plain(key) in OTHER_NAMES or plain(key) in ANSWERS  # such as prompt_key
    secret = key == "use_wandb" or (is_secret(key, str(value)) and not (is_known and key.endswith("_key")))
    text = MASK if secret and isinstance(value, str) else redacted(show(value))
    return text if len(text) <= 32 else f"{text[:29]}..."
