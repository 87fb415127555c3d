"""Imports objects of a user's modules, named `package.module:name`, and describes what their code raises."""

import importlib
import sys
import sysconfig
import traceback
from types import FrameType
from typing import Any

from .job_files import module_places

_OURS = ("rlhf", "rlhf_api", "rlhf_store", "rlhf_operator", "rlhf_trainer")
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_LONGEST_MESSAGE = 2000
"""Characters of an error's message: a reward function's may quote all responses."""


def named_object(path: str) -> Any:
    """Imports the object; raises whatever its module raises."""
    sys.path[:] = module_places()
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def described(error: BaseException) -> str:
    """`KeyError: 'grade' (/job/rewards.py:10)`: an error of a user's code, and the innermost line of its traceback that
    is neither a library's nor ours, if there is one."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames if not _of_library(frame)]
    place = f" ({places[-1]})" if places else ""
    message = " ".join(_words(error).split("\n"))[:_LONGEST_MESSAGE]
    text = f"{type(error).__name__}: {message}{place}"
    return text.encode(errors="backslashreplace").decode()  # it may quote half of a surrogate pair


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # of the user's own class of errors
        return f"and its text raises {type(other).__name__}"


def _of_library(frame: FrameType) -> bool:
    # Of a module that Python runs by its name, as our workers, `__name__` is `__main__`.
    package = str(frame.f_globals.get("__package__")).partition(".")[0]
    return package in _OURS or frame.f_code.co_filename.startswith((*_LIBRARIES, "<"))
