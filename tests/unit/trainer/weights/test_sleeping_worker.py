"""A worker beside others on its GPU sleeps, or ends."""

import inspect
from pathlib import Path

import pytest
from vllm.v1.worker.gpu_worker import Worker

from rlhf_trainer.engines.vllm.serve import sleeping_worker, watchdog
from rlhf_trainer.process import termination


@pytest.fixture
def causes(monkeypatch) -> list[str]:
    """Causes for which the worker would end its process."""
    ended = list[str]()
    monkeypatch.setattr(sleeping_worker, "end_soon", ended.append)
    return ended


def worker_whose(method: str, error: BaseException, monkeypatch) -> sleeping_worker.SleepingWorker:
    def fail(_worker: Worker, _given: object = None) -> None:
        raise error

    monkeypatch.setattr(Worker, method, fail)
    return object.__new__(sleeping_worker.SleepingWorker)


def test_a_worker_is_asleep_though_others_on_its_gpu_took_more_than_it_gave_back(causes, monkeypatch):
    assert sleeping_worker.OTHERS_GREW in inspect.getsource(Worker.sleep), "vLLM says it otherwise"
    worker_whose("sleep", AssertionError(sleeping_worker.OTHERS_GREW), monkeypatch).sleep(2)
    assert not causes


@pytest.mark.parametrize("method", ["sleep", "wake_up"])
def test_a_worker_that_fails_between_sleep_and_waking_ends_with_the_reason(method, causes, monkeypatch):
    worker = worker_whose(method, RuntimeError("CUDA error: out of memory"), monkeypatch)
    with pytest.raises(RuntimeError, match="out of memory"):
        getattr(worker, method)()
    (cause,) = causes
    assert cause.startswith("the engine could not ")
    assert cause.endswith(": CUDA error: out of memory")


def test_a_process_that_ends_itself_leaves_its_cause_and_a_moment_for_the_answer(tmp_path, monkeypatch):
    timers = list[tuple[float, object, list[int]]]()

    class Timer:
        def __init__(self, seconds: float, function: object, arguments: list[int]) -> None:
            timers.append((seconds, function, arguments))

        def start(self) -> None: ...

    monkeypatch.setattr(watchdog.threading, "Timer", Timer)
    monkeypatch.setenv(termination.VARIABLE, str(tmp_path / "end"))
    watchdog.end_soon("the engine could not sleep: no reason")
    assert Path(tmp_path / "end").read_text() == "the engine could not sleep: no reason\n"
    assert [arguments for _, _, arguments in timers] == [[watchdog.EXIT_ENGINE_DEAD]]
