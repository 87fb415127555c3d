"""Confines the processes of an environment: what they may reach, and how much they may take."""

import os
from pathlib import Path

from rlhf_api.field_types import READY_MADE
from rlhf_api.sections.environment import Environment

from ..process.limits import excess
from ..process.private_processes import Privacy
from .episode_sandbox import SOCKET

PROCESSES = 512
"""Of a worker with a class, or of a program: its processes with their threads."""


def privacy_of(section: Environment, *, network: bool, own_processes: bool) -> Privacy:
    """Of a worker, or of a program in it."""
    interpreter = () if section.python is None else (str(Path(section.python).absolute().parents[1]),)
    claims = filter(None, (os.environ.get(SOCKET),))
    tasks = (str(section.settings.get("folder", ".")),) if section.path == READY_MADE["harbor"] else ()
    return Privacy(
        network=network,
        readable=(*interpreter, *tasks, *claims, *(section.program or ())),
        writable=section.writable,
        megabytes=section.memory_megabytes // 4,
        own_processes=own_processes,
    )


def excess_of(section: Environment, first: int) -> str:
    """Names what is too much of the processes in the namespace of `first`, as `excess` says it."""
    return excess(first, processes=PROCESSES, megabytes=section.memory_megabytes)
