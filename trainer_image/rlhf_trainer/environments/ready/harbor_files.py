"""Reads the folder of a Harbor task: its instruction, its limits, and what of its Dockerfile a sandbox can give."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_api.errors.problem import show

from ...process.sandbox import SYSTEM
from .harbor_dockerfile import Copy, follow

DIRECTORY = "/app"
"""Working directory where the Dockerfile names none, as Harbor's templates have it."""
LOGS, TESTS, SOLUTION = "/logs", "/tests", "/solution"
"""Where the tests find their folders and leave the reward."""
TAKEN = (*SYSTEM, "dev", "proc", "tmp", *(place.strip("/") for place in (LOGS, TESTS, SOLUTION)))
"""Folders of the sandbox's root that are not the task's own."""
COMPOSE = "environment/docker-compose.yaml"
_Seconds = Annotated[float, Field(gt=0, le=7 * 86400)]
_Megabytes = Annotated[int, Field(gt=0, le=1 << 30)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Verifier(_Section):
    timeout_sec: _Seconds = 600.0
    env: dict[str, str] = {}


class _Solution(_Section):
    env: dict[str, str] = {}


class _Environment(_Section):
    memory_mb: _Megabytes | None = None


class _Settings(_Section):
    """The fields of `task.toml` that act."""

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
    copies: tuple[Copy, ...]
    variables: Mapping[str, str]
    left_out: tuple[str, ...]
    """Lines of the Dockerfile that were not followed."""

    @property
    def roots(self) -> set[str]:
        """Folders of the container's root that the task's own files lie in."""
        paths = (self.directory, *(copy.target for copy in self.copies))
        return {PurePosixPath(path).parts[1] for path in paths}

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
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
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
    made = follow(context, file.read_text() if file.is_file() else "")
    directory = DIRECTORY if made.directory == PurePosixPath("/") else str(made.directory)
    for copy in made.copies:
        place = PurePosixPath(copy.target)
        if len((place if copy.source.is_dir() else place.parent).parts) == 1:
            message = f"{file} puts {copy.source.name} in /, where a sandbox has no files"
            raise ValueError(f"{message}; put it below {DIRECTORY}")
    task = Task(
        folder, instruction, settings, directory, tuple(made.copies), made.variables, tuple(made.left_out)
    )
    if taken := task.roots.intersection(TAKEN):
        names = ", ".join(f"/{name}" for name in sorted(taken))
        message = f"{context}/Dockerfile puts files in {names}, which a sandbox has of this machine"
        raise ValueError(f"{message}; put them below {DIRECTORY}")
    return task
