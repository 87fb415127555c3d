"""Replies of a server whose engine is dead; test_engine_death.py kills real engines."""

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

from rlhf_trainer.engines.vllm.serve.watchdog import cause_of_death, quote_causes
from rlhf_trainer.process.termination import VARIABLE

OOM = " for lack of memory"


@pytest.fixture
def engine() -> Iterator[BaseProcess]:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), name="EngineCore")
    process.start()
    yield process
    process.kill()
    process.join()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "was ended by SIGKILL for lack of memory"),
        (signal.SIGTERM, "was ended by SIGTERM"),
    ],
)
def test_an_engine_ended_by_a_signal(engine: BaseProcess, number: signal.Signals, words: str) -> None:
    assert cause_of_death([engine], OOM, late=False) == ""
    assert engine.pid is not None
    os.kill(engine.pid, number)
    engine.join()
    assert (
        cause_of_death([engine], OOM, late=False) == f"vLLM's process EngineCore (pid {engine.pid}) {words}"
    )


def test_an_engine_that_ended_with_a_code_or_as_it_was_told() -> None:
    for code, words in ((3, "exited with code 3"), (0, "")):
        process = multiprocessing.get_context("fork").Process(
            target=sys.exit, args=(code,), name="EngineCore"
        )
        process.start()
        process.join()
        assert cause_of_death([process], OOM, late=False).endswith(words)
    assert cause_of_death([process], OOM, late=True) == "vLLM's engine is dead and its server did not end"


def run_engine_core() -> None:
    """Named as vLLM's function whose errors are fatal."""
    logger = logging.getLogger("vllm.v1.engine.core")
    try:
        raise ValueError("no\nmemory")
    except ValueError:
        logger.exception("EngineCore encountered a fatal error.")


def monitor_workers() -> None:
    logger = logging.getLogger("vllm.v1.executor.multiproc_executor")
    logger.error("Worker proc %s died unexpectedly (exit code: %s), shutting down.", "W-1", -9)


def call_utility() -> None:
    logging.getLogger("vllm.v1.engine.core").error(
        "Invocation of method failed", exc_info=ValueError("asked")
    )


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([run_engine_core, monitor_workers], "ValueError: no memory\n"),
        ([monitor_workers, run_engine_core], "Worker proc W-1 died unexpectedly (SIGKILL), shutting down.\n"),
        ([call_utility], None),
    ],
)
def test_the_first_fatal_error_of_a_process_is_its_termination_message(
    tmp_path, monkeypatch, functions, message
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "end"))
    handlers = logging.getLogger("vllm").handlers
    before, handlers[:] = [*handlers], []  # a test that parses vLLM's options has its plugins loaded
    quote_causes()
    quote_causes()  # vLLM loads its plugins more than once
    try:
        for function in functions:
            function()
        assert len(handlers) == 1
    finally:
        handlers[:] = before
    left = (tmp_path / "end").read_text().splitlines(keepends=True) if message else []
    assert (left[-1] if left else (tmp_path / "end").exists() or None) == message
    assert len(left) <= 1 or left[0] == "Traceback (most recent call last):\n"
