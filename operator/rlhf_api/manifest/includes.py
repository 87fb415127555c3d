"""Reads a manifest's file and merges the files that it includes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors.problem import InvalidJob, Problem, kind_of, show
from ..host.foreign_files import open_regular, read_at_most
from ..host.strict_yaml import documents
from ..host.variables import ENVIRONMENT
from ..job import KIND

INCLUDE = "include"
MOST_INCLUDES = 1000
LARGEST = 1 << 20
"""Bytes of a file; an API server takes objects of at most 1.5 MiB."""


def _as_it_is(document: Any, _where: str) -> Any:
    return document


Spelled = Callable[[Any, str], Any]
"""(the document of one file, the place where problems begin) -> the document in the spelling in which it is merged."""


def read(file: Path, variables: Mapping[str, str] = ENVIRONMENT, spelled: Spelled = _as_it_is) -> Any:
    """The document of a YAML file, merged over those in its `include` list, each over the ones before it.

    Paths are relative to the file that names them; see `merge`. `${NAME:default}` is replaced in each file, by
    `variables`. Messages quote nothing of a file that holds no object: it may be any file of the machine.

    Raises:
        InvalidJob: a file cannot be read, is not YAML, includes itself, or names an unset variable; or there are too
            many.
    """
    return _Reader(variables, spelled).read(file)


class _Reader:
    """Reads each file once, however many others include it."""

    def __init__(self, variables: Mapping[str, str], spelled: Spelled) -> None:
        self._variables, self._spelled = variables, spelled
        self._known: dict[str, Any] = {}
        self._merged = 0

    def read(self, file: Path, above: tuple[Path, ...] = ()) -> Any:
        """The merged document; `above`: the files that include it."""
        place = os.path.abspath(file)  # not resolved: names in it are relative to where it was named  # noqa: PTH100
        if place not in self._known:
            self._known[place] = self._with_includes(file, above)
        return self._known[place]

    def _with_includes(self, file: Path, above: tuple[Path, ...]) -> Any:
        document = self._spelled(_document(file, self._variables, included=bool(above)), f"{file}: ")
        if not isinstance(document, Mapping) or INCLUDE not in document:
            return document
        above = (*above, file.resolve())
        names = document[INCLUDE]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidJob([Problem(f"{file}: {INCLUDE}", f"must be a list of files; got {show(names)}")])
        self._merged += len(names)
        if self._merged > MOST_INCLUDES:
            message = f"more than {MOST_INCLUDES} files are included, counted each time; include fewer"
            raise InvalidJob([Problem(f"{file}: {INCLUDE}", message)])
        merged: Any = {}
        problems: list[Problem] = []
        for i, name in enumerate(names):
            where, included = f"{file}: {INCLUDE}[{i}]", file.parent / name
            if included.resolve() in above:
                problems.append(Problem(where, f"{included} includes itself; take it out"))
            elif not included.is_file():
                message = f"{included} is not a file; the path is relative to {file.parent}"
                problems.append(Problem(where, message))
            else:
                try:
                    base = self.read(included, above)
                except InvalidJob as error:
                    problems.extend(error.problems)
                    continue
                if isinstance(base, Mapping):
                    merged = merge(merged, base)
                else:
                    problems.append(Problem(str(included), f"must be one object; it holds {kind_of(base)}"))
        if problems:
            raise InvalidJob(problems)
        return merge(merged, {key: value for key, value in document.items() if key != INCLUDE})


def _document(file: Path, variables: Mapping[str, str], *, included: bool) -> Any:
    """The one document of a file, or the one job beside other objects, such as its claim. The file that the user names
    may be a pipe, such as `<(kustomize build)`; those that a manifest names may be a stranger's choice."""
    if file.suffix in (".jsonl", ".parquet"):
        message = "is a file of rows; give a manifest, which names it under spec.data.train"
        raise InvalidJob([Problem(str(file), message)])
    try:
        with open_regular(file) if included else file.open("rb") as opened:
            text = read_at_most(opened, LARGEST).decode("utf-8-sig")
    except OSError as error:
        raise InvalidJob([Problem(str(file), f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise InvalidJob([Problem(str(file), "is not UTF-8 text")]) from None
    except ValueError as error:
        raise InvalidJob([Problem(str(file), f"{error}, as no manifest is")]) from None
    contents = documents(text, str(file), variables)
    jobs = [each for each in contents if isinstance(each, Mapping) and each.get("kind") == KIND]
    possible = contents if len(contents) == 1 else jobs
    if len(possible) != 1:
        of_which = f", {len(jobs)} of them RLHFJobs" if jobs else ""
        message = f"must hold one {KIND}; it holds {len(contents)} documents{of_which}"
        raise InvalidJob([Problem(str(file), message)])
    return possible[0]


def merge(base: Any, over: Any) -> Any:
    """Objects key by key, of which a null takes one of `base` away (JSON Merge Patch, RFC 7396); any other value as the
    later one has it."""
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    taken = {key for key, value in over.items() if value is None and key in base}
    left = {key: value for key, value in base.items() if key not in taken}
    return left | {key: merge(left.get(key), value) for key, value in over.items() if key not in taken}
