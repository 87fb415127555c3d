"""`spec.environment`: a class or a program of the user's that answers each response, so that an episode has several
turns.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    Strict,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel

from ..errors.problem import show
from ..field_types import READY_MADE, EnvironmentClass, Frozen, Positive

PATH, PROGRAM, PYTHON = (f"spec.environment.{name}" for name in ("path", "program", "python"))


def _keywords(given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if wrong := [key for key in given if not key.isidentifier()]:
        raise ValueError(f"must be keyword arguments of the class; {show(wrong[0])} is not a name in Python")
    return given


class Environment(Frozen):
    """Episodes of several turns: a class or a program of your own replies to each response and gives the rewards
    (docs/guides/environments.md)."""

    path: EnvironmentClass | None = None
    """The class, as `package.module:name` or `file.py:name`; or a ready-made environment."""
    program: Annotated[tuple[str, ...], Strict(False)] | None = Field(None, min_length=1, max_length=64)
    """In place of a class: an agent's command, one process an episode, which asks the policy by `OPENAI_BASE_URL`."""
    python: str | None = Field(None, min_length=1, max_length=1024)
    """Path of another Python interpreter, as of a virtual environment, in which the class runs. It needs pydantic."""
    settings: Annotated[dict[str, JsonValue], AfterValidator(_keywords)] = {}
    """Keyword arguments of the class."""
    network: bool = False
    """Whether environments may use the network."""
    writable: Annotated[tuple[str, ...], Strict(False)] = Field((), max_length=16)
    """Folders that environments may write, besides a /tmp and a /dev/shm of their own."""
    memory_megabytes: int = Field(4096, ge=256)
    """Memory of a program, or of a process with a class, with all that it starts; a quarter of it for /tmp."""
    turns: int = Field(8, ge=1, le=1024)
    """Most turns of an episode; each samples up to `sampling.maxNewTokens` tokens."""
    max_tokens: Positive = 2048
    """Most tokens of an episode after its prompt: all turns and replies."""
    turn_seconds: Positive = 60
    """Timeout of one call of the environment."""
    seconds: Positive = 600
    """Most time that the calls of one episode take in all."""
    parallel: int = Field(64, ge=1, le=4096)
    """Most episodes at once."""
    retries: int = Field(2, ge=0, le=100)
    """Times that an episode is played again after a call ended its process or took too long, before it is left out."""
    workers: int = Field(2, ge=1, le=256)
    """Processes beside the trainer's in which environments run."""

    @model_validator(mode="after")
    def _is_a_class_or_a_program(self) -> Self:
        if (self.path is None) == (self.program is None):
            given = "none" if self.path is None else "path and program"
            raise ValueError(f"needs exactly one of path (a class) and program (a command); got {given}")
        return self

    @property
    def asks_policy(self) -> bool:
        """True where what replies asks the policy for its turns, over the OpenAI API, and ends by itself."""
        return self.program is not None or self.path == READY_MADE["verifiers"]

    @property
    def field(self) -> str:
        """The field that names what replies."""
        return PATH if self.program is None else PROGRAM


class Variables(dict[str, str]):
    """Variables of processes, as `spec.environment` held them in earlier releases."""


_KEYS = frozenset(key for name in Environment.model_fields for key in (name, to_camel(name)))


def holds_variables(value: object) -> bool:
    """True for a value of `spec.environment` of an earlier release, which holds variables of processes: none of its
    keys is a field of the section."""
    return isinstance(value, Mapping) and _KEYS.isdisjoint(value)


def section_or_variables(
    value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> Environment | Variables | None:
    """The section; or the variables, which `CommonSpec` moves to `env`."""
    if not holds_variables(value):
        section: Environment | None = handler(value)
        return section
    if value and info.data.get("env"):
        raise ValueError("is the former name of env, which is there too; remove one of them")
    if wrong := [key for key, each in value.items() if not isinstance(each, str)]:
        message = f"has no field of an environment, such as path, so it is read as env; {wrong[0]} must be text there"
        raise ValueError(message)
    return Variables(value)
