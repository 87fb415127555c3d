"""Which process of vLLM is forked. The servers that other tests start are forked here; what has CUDA cannot be."""

import sys

import pytest
from vllm.utils import platform_utils
from vllm.v1.engine import utils

from rlhf_trainer.engines.vllm.serve.forking import NUMA, Forking, fork_engine


def test_an_engine_is_forked_unless_cuda_or_its_executable_forbids_it(monkeypatch):
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setattr(utils, "get_mp_context", utils.get_mp_context)
    fork_engine()
    assert isinstance(utils.get_mp_context(), Forking)
    with pytest.MonkeyPatch.context() as numa:
        numa.setattr(sys, "argv", [*sys.argv, NUMA])
        assert utils.get_mp_context().get_start_method() == "spawn"
    monkeypatch.setattr(platform_utils, "cuda_is_initialized", lambda: True)
    assert utils.get_mp_context().get_start_method() == "spawn"
