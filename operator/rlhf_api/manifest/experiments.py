"""Manifests without a file on the command line: experiments by name, and functions as `package.module:name`."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ..algorithms import ALGORITHMS
from ..errors.problem import InvalidJob, Problem, show
from ..errors.similar import closest
from ..host.imports import described, named_object

FOLDER = Path("experiments")
"""Folder of the user's own experiments, `NAME.yaml`, in the current directory."""


def experiments() -> dict[str, Path | None]:
    """Experiments by name, with their files; None for an algorithm's defaults, which a file of the same name
    replaces."""
    return dict.fromkeys(ALGORITHMS) | {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}


def names_experiment(file: Path) -> bool:
    """True for the name of an experiment and not a path: without a folder, without a manifest's ending, and no file has
    it."""
    return file.name == str(file) and file.suffix not in (".yaml", ".yml", ".json") and not file.is_file()


def file_of(name: str) -> Path | None:
    """The file of an experiment; None for one of an algorithm. Raises InvalidJob if there is none of this name."""
    known = experiments()
    if name not in known:
        close = closest(name, list(known))
        meant = f' (did you mean "{close}"?)' if close else ""
        message = f"is neither a file nor an experiment{meant}; experiments are {', '.join(known)}"
        raise InvalidJob([Problem(name, f"{message}, and your own {FOLDER}/NAME.yaml")])
    return known[name]


def of_algorithm(name: str) -> dict[str, Any]:
    """Metadata and spec of an algorithm's experiment: what it usually sets; models, data, rewards and steps are the
    user's."""
    spec = {"algorithm": name, **ALGORITHMS[name].usual}
    return {"metadata": {"name": name.replace("_", "-")}, "spec": spec}


def from_function(name: str) -> Any:
    """The document that the function returns; modules are searched in the current directory last.

    Raises InvalidJob if it cannot be imported, raises, or does not return an object.
    """
    try:
        with redirect_stdout(sys.stderr):  # ours is the manifest, or a picture of it
            document = named_object(name)()
    except Exception as error:
        raise InvalidJob([Problem(name, f"failed to make a manifest: {described(error)}")]) from error
    if not isinstance(document, Mapping):
        raise InvalidJob([Problem(name, f"must return a manifest as a dict; got {show(document)}")])
    return document
