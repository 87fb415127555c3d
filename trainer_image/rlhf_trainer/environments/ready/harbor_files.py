"""Reads the folder of a Harbor task: its instruction, its limits, and what of its Dockerfile a sandbox can give."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from rlhf_api.errors.problem import show

from ...process.sandbox import PATH, SYSTEM, WORK

DIRECTORY = "/app"
"""Working directory where the Dockerfile names none, as Harbor's templates have it."""
LOGS, TESTS, SOLUTION = "/logs", "/tests", "/solution"
"""Where the tests find their folders and leave the reward."""
TAKEN = (*SYSTEM, "dev", "proc", "tmp", *(place.strip("/") for place in (LOGS, TESTS, SOLUTION)))
"""Folders of the sandbox's root that are not the task's own."""
COMPOSE = "environment/docker-compose.yaml"
_LEFT_OUT = ("RUN", "ADD")
"""Instructions that change the image, which no sandbox can follow."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Verifier(_Section):
    timeout_sec: PositiveFloat = 600.0
    env: dict[str, str] = {}


class _Solution(_Section):
    env: dict[str, str] = {}


class _Environment(_Section):
    memory_mb: PositiveInt | None = None


class _Settings(_Section):
    """What is read of `task.toml`."""

    verifier: _Verifier = _Verifier()
    solution: _Solution = _Solution()
    environment: _Environment = _Environment()
    steps: list[object] = []


@dataclass(frozen=True)
class Task:
    """A task's folder, as far as a sandbox can have it."""

    folder: Path
    instruction: str
    settings: _Settings
    directory: str
    copies: tuple[tuple[Path, str], ...]
    """Files and folders of the Dockerfile's context, and where they lie."""
    variables: Mapping[str, str]
    left_out: tuple[str, ...]
    """Lines of the Dockerfile that were not followed."""

    @property
    def roots(self) -> set[str]:
        """Folders of the container's root that the task's own files lie in."""
        return {
            PurePosixPath(path).parts[1] for path in (self.directory, *(target for _, target in self.copies))
        }

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path | None:
        folder = self.folder / "solution"
        return folder if (folder / "solve.sh").is_file() else None


def tasks_in(folder: Path) -> list[str]:
    """Names of the tasks below a folder, in order. Raises ValueError where there are none."""
    names = sorted(file.parent.name for file in folder.glob("*/task.toml"))
    if not names:
        raise ValueError(f"settings.folder: {folder} has no folder with a task.toml")
    return names


def read_task(folder: Path) -> Task:
    """Raises ValueError for a folder that is no task, or one that a sandbox cannot be a place for."""
    try:
        settings = _Settings.model_validate(tomllib.loads((folder / "task.toml").read_text()))
        instruction = (folder / "instruction.md").read_text()
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder} is no Harbor task: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{folder}/task.toml: {where}: {first['msg']}; got {show(first['input'])}") from None
    if settings.steps or (folder / COMPOSE).exists():
        what = "several steps" if settings.steps else "several containers"
        raise ValueError(f"{folder} has {what}, which are not supported; leave it out")
    if not (folder / "tests" / "test.sh").is_file():
        raise ValueError(f"{folder} has no tests/test.sh")
    for name, value in (*settings.verifier.env.items(), *settings.solution.env.items()):
        if "${" in value:
            message = f"{folder}/task.toml: {name} is to be a variable of the host, which no sandbox gets"
            raise ValueError(f"{message}; got {show(value)}")
    context = folder / "environment"
    file = context / "Dockerfile"
    lines = instructions(file.read_text()) if file.is_file() else []
    task = Task(folder, instruction, settings, *_follow(context, lines))
    if taken := task.roots.intersection(TAKEN):
        names = ", ".join(f"/{name}" for name in sorted(taken))
        message = f"{context}/Dockerfile puts files in {names}, which a sandbox has of this machine"
        raise ValueError(f"{message}; put them below {DIRECTORY}")
    return task


def instructions(text: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile's last stage and their arguments, continued lines joined."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*#", line)]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    made = list[tuple[str, str]]()
    for words in (line.split(None, 1) for line in joined.splitlines() if line.strip()):
        if words[0].upper() == "FROM":
            made.clear()
        made.append((words[0].upper(), words[1].strip() if len(words) > 1 else ""))
    return made


def _follow(
    context: Path, lines: list[tuple[str, str]]
) -> tuple[str, tuple[tuple[Path, str], ...], dict[str, str], tuple[str, ...]]:
    """The last four fields of a Task."""
    directory, variables, known = PurePosixPath("/"), dict[str, str](), {"PATH": PATH, "HOME": WORK}
    copies, left_out = list[tuple[Path, str]](), list[str]()
    for instruction, argument in lines:
        if instruction in ("ENV", "ARG"):
            given = dict(_variables(argument, known))
            known |= given
            variables |= given if instruction == "ENV" else {}
        elif instruction == "WORKDIR":
            directory /= _expand(argument.strip("\"'"), known)
        elif instruction == "COPY" and "--from" not in argument:
            copies += _copies(context, directory, _expand(argument, known))
        elif instruction in (*_LEFT_OUT, "COPY"):
            left_out.append(f"{instruction} {argument}")
    named = DIRECTORY if directory == PurePosixPath("/") else str(directory)
    return named, tuple(copies), variables, tuple(left_out)


def _expand(text: str, known: Mapping[str, str]) -> str:
    """With values in place of `$NAME` and `${NAME}`, empty for a variable that has none."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda match: known.get(match[1] or match[2], ""), text)


def _variables(argument: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of `NAME=value ...`, or `NAME value`."""
    words = shlex.split(argument)
    if words and "=" not in words[0]:
        words = ["=".join(argument.split(None, 1))]
    for name, _, value in (word.partition("=") for word in words):
        yield name, _expand(value, known)


def _copies(context: Path, directory: PurePosixPath, argument: str) -> Iterator[tuple[Path, str]]:
    """Each file or folder that a COPY names, and its path in the container. Raises ValueError for what is not there."""
    words = json.loads(argument) if argument.startswith("[") else shlex.split(argument)
    *sources, target = (word for word in words if not word.startswith("--"))
    place = directory / target
    into = target.endswith("/") or target in (".", "./") or len(sources) > 1
    for source in sources:
        pattern = source.lstrip("/").removeprefix("./")
        matches = [context] if pattern in ("", ".") else sorted(context.glob(pattern))
        if not matches or not all(own.resolve().is_relative_to(context.resolve()) for own in matches):
            raise ValueError(f"{context}/Dockerfile copies {source}, which is not there")
        for own in matches:
            yield own, str(place / own.name if into and not own.is_dir() else place)
