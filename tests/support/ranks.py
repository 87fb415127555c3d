"""Two processes as the ranks of a group of their own, under the environment that torchrun gives them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.vllm_server import free_port


@contextmanager
def two_ranks(*arguments: str, **environ: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Python with these arguments, as rank 0 and as rank 1; both are killed afterwards."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"} | environ
    started = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | variables | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()
