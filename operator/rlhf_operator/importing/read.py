"""Reads a file of another system, by the ending of its name."""

import tomllib
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob, Problem, kind_of
from rlhf_api.host.foreign_files import read_regular
from rlhf_api.host.strict_yaml import documents

from .algorithms import OF_PRIME_RL
from .read_python import read_python
from .read_shell import read_shell
from .settings import Configuration, flattened

LARGEST = 1 << 20
"""Maximum size of a file, bytes."""


def read(file: Path, algorithm: str = "") -> Configuration:
    """The configuration in a file; `algorithm` chooses one of several in it.

    Raises:
        InvalidJob: it cannot be read, or sets nothing that is known how to read.
    """
    source = str(file)
    try:
        text = read_regular(file, LARGEST).decode()
    except UnicodeDecodeError:
        raise InvalidJob([Problem(source, "is not UTF-8 text")]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidJob([Problem(source, f"cannot be read: {reason}")]) from None
    match file.suffix.lower():
        case ".py":
            return read_python(text, source, algorithm)
        case ".sh" | ".bash" | ".txt" | ".slurm" | ".sbatch" | "":
            return read_shell(text, source)
        case ".toml":
            return Configuration("prime-rl", tuple(flattened(_toml(text, source), source)), OF_PRIME_RL)
        case ".yaml" | ".yml":
            (document, *others) = documents(text, source) or [{}]
            if others or not isinstance(document, dict):
                message = f"must be one object of settings; it holds {kind_of(document)}"
                raise InvalidJob([Problem(source, message)])
            return Configuration("TRL", tuple(flattened(document, source)))
    message = "must end with .py or .yaml (TRL), .sh (verl, OpenRLHF, TRL) or .toml (prime-rl)"
    raise InvalidJob([Problem(source, message)])


def _toml(text: str, source: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidJob([Problem(source, f"is not valid TOML: {error}")]) from None
