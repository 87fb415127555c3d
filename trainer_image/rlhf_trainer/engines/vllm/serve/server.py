"""The stock vLLM server, whose start is mostly imports: done once, and without garbage collections.
`python -m rlhf_trainer.engines.vllm.serve.server` takes the options of `vllm serve`.
"""

import gc
import importlib
import runpy
import sys

from rlhf_api.contract.run import EXIT_INVALID
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import Role

from ....process import termination
from .expected import check_vllm
from .forking import fork_processes
from .launch import SHARED
from .refusal import refusals

SERVER = "vllm.entrypoints.openai.api_server"
IMPORTED = ("vllm.v1.engine.async_llm", "vllm.v1.engine.core")
"""Modules of vLLM that server and engine import."""


def main() -> None:
    gc.disable()
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    try:
        check_vllm(f"spec.{Role.GENERATOR.value}")
        fork_processes()
        with refusals(Role.GENERATOR, SHARED):
            runpy.run_module(SERVER, run_name="__main__")
    except InvalidJob as error:
        termination.write(str(error))
        sys.exit(EXIT_INVALID)


if __name__ == "__main__":
    main()
