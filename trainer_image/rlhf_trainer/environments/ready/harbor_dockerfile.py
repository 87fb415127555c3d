"""Follows a Dockerfile as far as a sandbox can: its working directory, its variables, and copies of its own files."""

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rlhf_api.errors.problem import show

from ...process.sandbox import PATH, WORK

_IMAGE = ("RUN", "ADD")
"""Instructions that change the image, which no sandbox can follow."""
_FOLLOWED = ("ENV", "ARG", "WORKDIR", "COPY")
_COMMENT = re.compile(r"\s*(#|$)")
_HERE = re.compile(r"(?<!\S)\d*<<(-?)([\"']?)(\w[^\s\"'<]*)\2(?!\S)")
"""Begin of a text in the lines below, and the line that ends it."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?([-+])([^{}]*))?\})")
_IGNORED = ("chown", "link", "chmod")
"""Options of COPY but the mode that it gives: every user may write the files."""


class Copy(NamedTuple):
    """A file or folder of the Dockerfile's own, its path in the container, and the mode of its files, if it has one."""

    source: Path
    target: str
    mode: int | None = None


@dataclass
class Followed:
    """Directory, files and variables of a Dockerfile's last stage; `left_out`: lines of it that were not followed."""

    directory: PurePosixPath = field(default_factory=lambda: PurePosixPath("/"))
    copies: list[Copy] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def follow(context: Path, text: str) -> Followed:
    """Raises ValueError for a line that names what is not there, or that cannot be read."""
    made, known = Followed(), {"PATH": PATH, "HOME": WORK}
    folders = {made.directory}
    for instruction, argument in instructions(text):
        try:
            if instruction in _FOLLOWED and not argument:
                raise ValueError("has no argument")
            if instruction in ("ENV", "ARG"):
                given = dict(_variables(argument, known))
                known |= given
                made.variables |= given if instruction == "ENV" else {}
            elif instruction == "WORKDIR":
                made.directory = _path(made.directory, _expand(argument.strip("\"'"), known))
                folders |= {made.directory, *made.directory.parents}
            elif instruction == "COPY" and not re.match(r"(--\S+\s+)*--from", argument):
                made.copies += _copies(context, made, folders, _expand(argument, known))
            elif instruction in (*_IMAGE, "COPY"):
                made.left_out.append(f"{instruction} {argument}")
        except ValueError as error:
            line = show(f"{instruction} {argument}".strip())
            raise ValueError(f"{context}/Dockerfile: {line}: {error}") from None
    return made


def instructions(text: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile's last stage and their arguments, continued lines joined, without the texts of
    here-documents."""
    made, lines = list[tuple[str, str]](), iter(text.splitlines())
    for line in lines:
        if _COMMENT.match(line):
            continue
        while continued := re.search(r"\\[ \t]*$", line):
            more = next((each for each in lines if not _COMMENT.match(each)), "")
            line = f"{line[: continued.start()]} {more}"
        word, argument = (*line.split(None, 1), "")[:2]
        word, argument = word.upper(), argument.strip()
        for dash, _, end in _HERE.findall(argument) if word in (*_IMAGE, "COPY") else ():
            next((each for each in lines if (each.lstrip("\t") if dash else each) == end), None)
        if word == "FROM":
            made.clear()
        made.append((word, argument))
    return made


def _expand(text: str, known: Mapping[str, str]) -> str:
    """With values in place of `$NAME`, `${NAME}`, `${NAME:-other}` and `${NAME:+other}`, empty for a variable that has
    none."""

    def value(match: re.Match[str]) -> str:
        plain, name, sign, other = match.groups()
        own, other = known.get(plain or name, ""), _expand(other or "", known)
        return (other if own else "") if sign == "+" else own or other

    return _VARIABLE.sub(value, text)


def _variables(argument: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of `NAME=value ...`, or `NAME value`."""
    words = shlex.split(argument) if "=" in argument.split()[0] else ["=".join(argument.split(None, 1))]
    for name, _, value in (word.partition("=") for word in words):
        yield name, _expand(value, known)


def _copies(context: Path, made: Followed, folders: set[PurePosixPath], argument: str) -> list[Copy]:
    """Each file or folder that a COPY names; `folders`: those that are there by now."""
    if _HERE.search(argument):
        raise ValueError("a text in the Dockerfile is not supported; put it in a file")
    mode, words = _words(argument)
    if len(words) < 2:
        raise ValueError("must have a source and a target")
    *sources, target = words
    place = _path(made.directory, target)
    matches = [own for source in sources for own in _matches(context, source)]
    there = place in folders or any(_has_folder(copy, place) for copy in made.copies)
    into = there or target.endswith(("/", "/.")) or len(matches) > 1
    return [Copy(own, str(place / own.name if into and not own.is_dir() else place), mode) for own in matches]


def _words(argument: str) -> tuple[int | None, list[str]]:
    """The mode that a COPY gives, and its sources and target."""
    mode = None
    while option := re.match(r"--(\w+)(?:=(\S*))?\s+", argument):
        name, value = option.groups()
        if name not in _IGNORED:
            raise ValueError(f"--{name} is not supported")
        if name == "chmod":
            mode = int(value or "", 8)
        argument = argument[option.end() :]
    words = json.loads(argument) if argument.startswith("[") else shlex.split(argument)
    if not all(isinstance(word, str) for word in words):
        raise ValueError("must name files")
    return mode, words


def _matches(context: Path, source: str) -> list[Path]:
    pattern = posixpath.normpath(source.lstrip("/") or ".")
    matches = [context] if pattern == "." else sorted(context.glob(pattern))
    if not matches or not all(own.resolve().is_relative_to(context.resolve()) for own in matches):
        raise ValueError(f"copies {source}, which is not there")
    for file in (file for own in matches for file in own.rglob("*") if file.is_symlink()):
        if not file.resolve().is_relative_to(context.resolve()):
            raise ValueError(f"copies {file}, a link to what is not in {context}")
    return matches


def _has_folder(copy: Copy, place: PurePosixPath) -> bool:
    """True if a folder is at this place once the copy is made."""
    if place in PurePosixPath(copy.target).parents:
        return True
    return place.is_relative_to(copy.target) and (copy.source / place.relative_to(copy.target)).is_dir()


def _path(directory: PurePosixPath, path: str) -> PurePosixPath:
    """Below the container's root, whatever its parts are."""
    return PurePosixPath("/" + posixpath.normpath(directory / path).lstrip("/"))
