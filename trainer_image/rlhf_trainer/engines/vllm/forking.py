"""The engine's process, forked on a CPU from the one that starts it, which has imported all of vLLM, has computed
nothing by then and has no threads that compute. vLLM would spawn it, which imports everything a second time.
"""

import importlib
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any


class Engine(ForkProcess):
    """Calls vLLM's plugins, ours too, as an engine does that is spawned: in its own process, and behind its own log."""

    def run(self) -> None:
        plugins: Any = importlib.import_module("vllm.plugins")
        plugins.plugins_loaded = False
        super().run()


class Forking(ForkContext):
    Process = Engine


def fork_engine() -> None:
    """Makes vLLM fork its engine process: its platform for CPUs overwrites VLLM_WORKER_MULTIPROC_METHOD. Workers that
    an engine has beside it are spawned."""
    utils: Any = importlib.import_module("vllm.v1.engine.utils")
    utils.get_mp_context = Forking
