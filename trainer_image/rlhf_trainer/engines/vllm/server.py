"""The stock vLLM server, whose start is mostly imports: done without garbage collections, and on a CPU done once.
`python -m rlhf_trainer.engines.vllm.server` takes the options of `vllm serve`.

vLLM runs its engine in a process of its own. On a CPU it would spawn it, which imports everything a second time; here
it is forked from the server, which has not computed anything by then and has no threads that compute.
"""

import gc
import importlib
import runpy
import sys
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

from rlhf_api.problems import InvalidJob
from rlhf_api.roles import Role
from rlhf_api.run import EXIT_INVALID

from ... import termination
from .launch import SHARED, on_cpu
from .refusal import refusals

SERVER = "vllm.entrypoints.openai.api_server"
IMPORTED = ("vllm.v1.engine.async_llm", "vllm.v1.engine.core")
"""Modules of vLLM that server and engine import."""


class Engine(ForkProcess):
    """Calls vLLM's plugins, ours too, as an engine does that is spawned: in its own process, and behind its own log."""

    def run(self) -> None:
        plugins: Any = importlib.import_module("vllm.plugins")
        plugins.plugins_loaded = False
        super().run()


class Forking(ForkContext):
    Process = Engine


def main() -> None:
    gc.disable()
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    if on_cpu():
        fork_engine()
    try:
        with refusals(Role.GENERATOR, SHARED):
            runpy.run_module(SERVER, run_name="__main__")
    except InvalidJob as error:
        termination.write(str(error))
        sys.exit(EXIT_INVALID)


def fork_engine() -> None:
    """Makes vLLM fork its engine process: its platform for CPUs overwrites VLLM_WORKER_MULTIPROC_METHOD. Workers that
    an engine has beside it are spawned."""
    utils: Any = importlib.import_module("vllm.v1.engine.utils")
    utils.get_mp_context = Forking


if __name__ == "__main__":
    main()
