"""Faults that tests inject at named points of a trainer (`rlhf_trainer.process.faults`)."""

import importlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.support.run_processes import environ, listening, processes

ASKED = "asked-to-stop"
PORTS = "ports.json"
QUIET, HUNG = "quiet", "hung"
"""Marks of a silence that is meant (tests/support/clocks/haste.py)."""
_reached: list[str] = []


def kill_generator_in_broadcast(point: str) -> None:
    """generator-1 is killed in the middle of the broadcast after step 2; step 4 begins when it is back."""
    _kill_generator_at("bucket:1", point)


def kill_generator_before_the_first_bytes(point: str) -> None:
    """The same, before any byte: those of an adapter, or of a few weights beside a base, fit one bucket."""
    _kill_generator_at("bucket:0", point)


def _kill_generator_at(target: str, point: str) -> None:
    _reached.append(point)
    # Once: that broadcast is begun again.
    if point == target and "step:1" in _reached and _first_time("killed-generator"):
        _kill("generator-1")
    if point == "step:3":
        _wait_for("generator-1")


def note_ports(point: str) -> None:
    """PORTS gets the ports on which the run listens as step 2 begins, when all of its processes are at work."""
    if point == "step:1" and os.environ["RANK"] == "0":
        (host,) = (p for p in psutil.Process().parents() if "rlhf_operator.cli" in p.cmdline())
        Path(os.environ["RLHF_RUN_CONFIG"]).with_name(PORTS).write_text(json.dumps([*listening(host)]))


def kill_reward_before_scoring(point: str) -> None:
    """reward-0 is killed once, when step 2 begins: also if that is repeated, since its snapshot was not complete."""
    if point == "step:1" and _first_time("killed-reward"):
        _kill("reward-0")


def kill_teacher_then_trainer(point: str) -> None:
    """reference-1 is killed once, when step 2 begins, and the trainer when step 3 does."""
    if point == "step:1" and _first_time("killed-teacher"):
        _kill("reference-1")
    kill_trainer_after_two_steps(point)


def kill_trainer_after_two_steps(point: str) -> None:
    """The trainer kills itself once, when step 3 begins."""
    if point == "step:2" and _first_time():
        os.kill(os.getpid(), 9)


def refuse_second_step(point: str) -> None:
    """Step 2 is an error of the program whenever it begins."""
    if point == "step:1":
        raise RuntimeError(
            "more than one element of the written-to tensor refers to a single memory location"
        )


def kill_reward_then_trainer(point: str) -> None:
    """Both of the above, in one run."""
    kill_reward_before_scoring(point)
    kill_trainer_after_two_steps(point)


def stop_each_rank(point: str) -> None:
    """Rank 1 stops before it loads its policy, rank 0 in the first update of step 2, rank 1 in that of step 4, as by
    SIGSTOP: each once."""
    rank = os.environ["RANK"]
    if point in {"0": ("update:1.0",), "1": ("load:policy", "update:3.0")}[rank] and _first_time(
        f"stopped-{rank}-{point}"
    ):
        for mark in (QUIET, HUNG):
            Path(os.environ["RLHF_RUN_CONFIG"]).with_name(mark).touch()
        os.kill(os.getpid(), signal.SIGSTOP)


def kill_engine_in_swap(point: str) -> None:
    """The engine's process of one generator kills itself when it is told to go over to weight version 2."""
    if point == "swap:2" and _first_time():
        os.kill(os.getpid(), 9)


def save_the_first_tensors_again(point: str) -> None:
    """From step 2 on, the saver copies tensors that it has kept of the first snapshot, with the new step."""
    if point == "step:0":
        saver: Any = importlib.import_module("rlhf_trainer.checkpoint.saver")
        copied, first = saver.copied, list[tuple[int, str, dict[str, Any]]]()

        def stale(*given: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:
            for number, group, batch in copied(*given):
                stale_batch = {**batch, **next((old for n, _, old in first if n == number), {})}
                first.append((number, group, dict(batch)))
                yield number, group, stale_batch | {name: batch[name] for name in batch if name == "step"}

        saver.copied = stale


def spoil_a_served_weight(point: str) -> None:
    """Once generator-1 has gone over to weight version 2 and has proven it, one value of its last norm changes."""
    if point == "swap:2" and os.environ["RLHF_NAME"] == "generator-1":
        served = importlib.import_module("rlhf_trainer.engines.vllm.weights.served").Served
        loaded = served.loaded

        def spoilt(self, *arguments) -> None:
            loaded(self, *arguments)
            self.prove()
            self._model.get_parameter("model.norm.weight").data[0] += 0.01

        served.loaded = spoilt


def disturb_episodes(point: str) -> None:
    """While episodes are played: generator-1 is killed as step 3 begins, the trainer as step 5 does. Each once."""
    if point == "step:2" and _first_time("killed-generator"):
        _kill("generator-1")
    if point == "step:4" and _first_time():
        os.kill(os.getpid(), 9)


def disturb_environments(point: str) -> None:
    """While episodes are played: environment-0 is killed in step 2, environment-1 stops in step 3, as by SIGSTOP. Each
    once."""
    if point == "step:1" and _first_time("killed-environment"):
        threading.Timer(0.5, _kill, ("environment-0",)).start()
    if point == "step:2" and _first_time("stopped-environment"):
        threading.Timer(0.5, _kill, ("environment-1", signal.SIGSTOP)).start()


def _first_time(mark: str = "killed-once") -> bool:
    try:
        Path(os.environ["RLHF_TERMINATION_LOG"]).with_name(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hold_second_step(point: str) -> None:
    """Step 2 begins once the test has put the file ASKED beside the run's configuration."""
    _hold("step:1", point)


def hold_fourth_step(point: str) -> None:
    """As hold_second_step."""
    _hold("step:3", point)


def _hold(target: str, point: str) -> None:
    if point == target:
        mark, deadline = Path(os.environ["RLHF_RUN_CONFIG"]).with_name(ASKED), time.monotonic() + 300
        while not mark.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody put {mark}")
            time.sleep(0.01)


def kill_as_told(point: str) -> None:
    """KILL_AT is `<n>:<point>` for the n-th time that a point is reached, or `<seconds>:` after the first step began.

    Points are compared up to their number: `segment` is any segment.
    """
    when, _, target = os.environ["KILL_AT"].partition(":")
    _reached.append(point.partition(":")[0])
    if target and _reached[-1] == target and _reached.count(target) == int(when):
        os.kill(os.getpid(), 9)
    if not target and _reached.count("step") == 1 and _reached[-1] == "step":
        threading.Timer(float(when), os.kill, (os.getpid(), 9)).start()


def _ours(name: str) -> list[psutil.Process]:
    return processes(Path(os.environ["RLHF_RUN_CONFIG"]).parent, name)


def _kill(name: str, number: signal.Signals = signal.SIGKILL) -> None:
    """The role's own processes; not the one that supervises them, which tells how they ended."""
    for process in _ours(name):
        with suppress(psutil.NoSuchProcess):  # it has ended with the one before
            if not any("reaper" in word for word in process.cmdline()[1:3]):
                process.send_signal(number)


def _wait_for(name: str, timeout: float = 240) -> None:
    """Until it answers on its port, with a process that is not the killed one."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        ports = {variables["RLHF_PORT"] for process in _ours(name) if (variables := environ(process))}
        for port in ports:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
        time.sleep(0.2)
    raise TimeoutError(f"{name} did not come back: {json.dumps(_reached)}")
