"""Commands that run in the trainer's environment: its packages are not imported here."""

import importlib.util
import os
import subprocess
import sys

from pydantic import BaseModel

from rlhf_api.host import reaper

from .exits import Failure


def has_packages() -> bool:
    """True if the trainer's packages are installed here."""
    return all(map(importlib.util.find_spec, ("rlhf_trainer", "transformers")))


def run_module(
    module: str, request: BaseModel, *arguments: str, streams: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a module of the trainer, which reads the request as JSON from stdin; `streams`: where stdout and stderr go.
    Nothing that it started outlives it, or this process. Raises Failure if the trainer's packages are not installed."""
    if not has_packages():
        raise Failure(
            "this needs the trainer's packages, which are not installed: pip install 'rlhf-operator[trainer]'"
        )
    text = request.model_dump_json(by_alias=True)
    below = (sys.executable, "-I", str(reaper.__file__), str(os.getpid()))
    command = [*below, sys.executable, "-P", "-m", module, *arguments]
    return subprocess.run(command, input=text, stdout=streams, stderr=streams, text=True, check=False)
