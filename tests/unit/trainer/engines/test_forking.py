"""Processes of vLLM that are forked, unless the one that starts them has CUDA."""

import os
import sys

import pytest
from vllm.model_executor.models import registry
from vllm.utils import platform_utils
from vllm.v1.engine import utils

from rlhf_trainer.engines.vllm.serve.forking import NUMA, Forking, fork_processes, run_forked


@pytest.fixture
def forking(monkeypatch):
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    for module, name in ((utils, "get_mp_context"), (registry, "_run_in_subprocess")):
        monkeypatch.setattr(module, name, getattr(module, name))  # undone after the test
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda _function: "anew")
    fork_processes()


@pytest.mark.usefixtures("forking")
def test_an_engine_is_forked_unless_cuda_or_its_executable_forbids_it(monkeypatch):
    assert isinstance(utils.get_mp_context(), Forking)
    with pytest.MonkeyPatch.context() as numa:
        numa.setattr(sys, "argv", [*sys.argv, NUMA])
        assert utils.get_mp_context().get_start_method() == "spawn"
    monkeypatch.setattr(platform_utils, "cuda_is_initialized", lambda: True)
    assert utils.get_mp_context().get_start_method() == "spawn"


@pytest.mark.usefixtures("forking")
def test_a_model_s_class_is_looked_at_in_a_fork_and_not_here(monkeypatch):
    assert registry._run_in_subprocess(os.getppid) == os.getpid()
    monkeypatch.setattr(platform_utils, "cuda_is_initialized", lambda: True)
    assert registry._run_in_subprocess(os.getppid) == "anew"


def test_what_fails_in_a_fork_fails_here_with_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ZeroDivisionError: division by zero"):
        run_forked(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="the process ended with code 3"):
        run_forked(lambda: os._exit(3))
