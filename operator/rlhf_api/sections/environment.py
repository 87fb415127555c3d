"""`spec.environment`: a class or a program of the user's that answers each response, so that an episode has several
turns.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from ..errors.problem import show
from ..field_types import READY_MADE, EnvironmentClass, Frozen, Positive
from .roles import MOST_PODS, RoleSpec

PATH, PROGRAM, PYTHON = (f"spec.environment.{name}" for name in ("path", "program", "python"))


def _keywords(given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if wrong := [key for key in given if not key.isidentifier()]:
        raise ValueError(f"must be keyword arguments of the class; {show(wrong[0])} is not a name in Python")
    return given


class Environment(RoleSpec):
    """Episodes of several turns (docs/guides/environments.md)."""

    replicas: int = Field(0, ge=0, le=MOST_PODS)
    """Pods of a role of their own; 0: beside the trainer."""
    path: EnvironmentClass | None = None
    """The class, as `package.module:name` or `file.py:name`; or a ready-made one."""
    program: tuple[str, ...] | None = Field(None, min_length=1, max_length=64)
    """An agent's command in place of a class; it asks the policy by `OPENAI_BASE_URL`."""
    python: str | None = Field(None, min_length=1, max_length=1024)
    """Another Python interpreter, as of a virtual environment, in which the class runs."""
    settings: Annotated[dict[str, JsonValue], AfterValidator(_keywords)] = {}
    """Keyword arguments of the class."""
    network: bool = False
    """Environments may use the network."""
    writable: tuple[str, ...] = Field((), max_length=16)
    """Folders that environments may write, besides /tmp and /dev/shm."""
    memory_megabytes: int = Field(4096, ge=256)
    """Memory of a program, or of a process with a class; a quarter of it for /tmp."""
    turns: int = Field(8, ge=1, le=1024)
    """Most turns of an episode, each of up to `sampling.maxNewTokens` tokens."""
    max_tokens: Positive = 2048
    """Most tokens of an episode after its prompt."""
    turn_seconds: Positive = 60
    """Timeout of one call."""
    seconds: Positive = 600
    """Timeout of all calls of an episode."""
    parallel: int | None = Field(None, ge=1, le=4096)
    """Most episodes at once; null: 256 of a class, 64 of what asks the policy itself, as programs do."""
    retries: int = Field(2, ge=0, le=100)
    """Times that an episode is played again whose call ended its process or took too long."""
    workers: int = Field(2, ge=1, le=256)
    """Processes with environments, of each replica or of the trainer."""

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
    def most_episodes(self) -> int:
        """Most episodes at once: generation is fastest where those of a step are, and each program has a process."""
        return self.parallel or (64 if self.asks_policy else 256)

    @property
    def field(self) -> str:
        """The field that names what replies."""
        return PATH if self.program is None else PROGRAM


class Variables(dict[str, str]):
    """Variables of processes, as `spec.environment` held them in earlier releases."""


def holds_variables(value: object, section: type[Frozen] = Environment) -> bool:
    """True for a value of `environment` of an earlier release, which holds variables of processes: none of its keys is
    a field of the section."""
    names = section.model_fields
    return isinstance(value, Mapping) and value.keys().isdisjoint({*names, *map(to_camel, names)})


def _with_tuples(value: Any, key: str = "") -> Any:
    """A section of JSON with tuples in place of lists but in free-form fields: a wrapped validator hands its value on
    as one of Python, in which a tuple is asked for."""
    if key in ("settings", "template"):
        return value
    if isinstance(value, Mapping):
        return {name: _with_tuples(each, name) for name, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def or_variables(section: type[Frozen]) -> WrapValidator:
    """Validates the section; or the variables, which `move_variables` moves to `env`."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if not holds_variables(value, section):
            return handler(_with_tuples(value))
        if value and info.data.get("env"):
            raise ValueError("is the former name of env, which is there too; remove one of them")
        if wrong := [key for key, each in value.items() if not isinstance(each, str)]:
            raise ValueError(f"has none of its fields, so it is read as env; {wrong[0]} must be text there")
        return Variables(value)

    return WrapValidator(validate)


def move_variables(spec: Any) -> Any:
    """A spec with the variables of its `environment`, where it holds some, in `env`."""
    if isinstance(spec.environment, Variables):
        default = type(spec).model_fields["environment"].default
        spec.__dict__ |= {"env": spec.env | spec.environment, "environment": default}
        spec.__pydantic_fields_set__.add("env")
        spec.__pydantic_fields_set__.discard("environment")
    return spec
