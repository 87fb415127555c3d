"""Arguments of every command that reads a manifest: FILE, `path=value`, `--set`, `--no-env` and `--runtime`. Imports
nothing heavy.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.variables import ENVIRONMENT, NO_ENVIRONMENT
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.runtime import load_runtime, with_runtime


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """Adds FILE, `path=value`, `--set` and `--no-env`; the options have `file`, the overrides in order as `set`, and
    `variables`."""
    add_file(parser)
    parser.add_argument(
        "set",
        nargs="*",
        action="extend",
        default=[],
        type=override,
        metavar="path=value",
        help="override a field of the manifest, such as ppo.klCoefficient=0.1",
    )
    add_set(parser)


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds only FILE."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="the manifest: a YAML or JSON file, an experiment's name (see `rlhf experiments`), or package.module:name "
        "of a function that returns it",
    )


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with overrides that stand behind other options: argparse takes `path=value` in one place alone."""
    options, rest = parser.parse_known_args(arguments)
    others = [text for text in rest if text.startswith("-") or "=" not in text]
    if others or (rest and not hasattr(options, "set")):
        parser.error(f"unrecognized arguments: {' '.join(others or rest)}")
    if rest:
        name = "values" if hasattr(options, "values") else "set"
        setattr(options, name, [*getattr(options, name), *rest])
    return options


def add_trial(parser: argparse.ArgumentParser) -> None:
    """Adds `--trial`, of commands that start a run."""
    parser.add_argument(
        "--trial",
        metavar="NAME",
        help="run the manifest once more under a name of its own, <name>-NAME, beside its other runs",
    )


def add_set(parser: argparse.ArgumentParser) -> None:
    """Adds only `--set` and `--no-env`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="path=value",
        help="override a field of the manifest, such as ppo.klCoefficient=0.1; may be repeated",
    )
    parser.add_argument(
        "--no-env",
        dest="variables",
        action="store_const",
        const=NO_ENVIRONMENT,
        default=ENVIRONMENT,
        help="refuse ${NAME} in the manifest and take no environment variable into it: for a stranger's manifest",
    )


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """Adds `--runtime`, for commands that read a whole job."""
    parser.add_argument(
        "--runtime", type=Path, metavar="FILE", help="manifest of the runtime that spec.runtime names"
    )


def with_runtime_of(
    job: RLHFJob, file: Path | None, variables: Mapping[str, str] = ENVIRONMENT, *, needed: bool
) -> RLHFJob:
    """The job merged with the runtime that it references, read from the given file.

    Raises:
        InvalidJob: the file holds another runtime, or none is given and one is `needed`.
    """
    named = job.spec.runtime
    if file is not None:
        runtime = load_runtime(file, variables)
        if named is None or (named.kind, named.name) != (runtime.kind, runtime.name):
            reference = f"{named.kind} {named.name}" if named else "none"
            message = f"has {runtime.kind} {runtime.name}; spec.runtime names {reference}"
            raise InvalidJob([Problem(str(file), message)])
        return job.model_copy(update={"spec": with_runtime(job.spec, runtime)})
    if named is not None and needed:
        message = f"{named.kind} {named.name} exists only on a cluster; give its manifest with --runtime, or remove it"
        raise InvalidJob([Problem("spec.runtime", message)])
    return job


def override(text: str) -> str:
    if "=" not in text:
        files = (
            "; a command takes one manifest, which names others by `include`" if Path(text).is_file() else ""
        )
        raise argparse.ArgumentTypeError(f"must be path=value, such as steps=10; got {text!r}{files}")
    return text
