"""Ends a vLLM server soon after its engine's process: a thread of the server, which no request can hold up.

vLLM's own end waits for every request under way, and one whose engine died in the middle of it may never end. So
VLLM_KEEP_ALIVE_ON_ENGINE_DEATH leaves it all to this. The termination message is the exception of the engine's process
or of one of its workers, which `quote_causes` leaves there, else the way in which that process ended. A server that was
told to end by SIGTERM kills its engine itself: that is no failure.
"""

import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from rlhf_api.oom import OomKills

from ... import termination

log = logging.getLogger("vllm.rlhf")

POLL_SECONDS = 0.5
LINGER_SECONDS = 5.0
"""Time for which a server may outlast an engine that it was told to end, or one that is dead and has not said why
yet."""
EXIT_ENGINE_DEAD = 70
"""EX_SOFTWARE; also that of a worker whose swap to new weights failed."""
FATAL = frozenset({"run_engine_core", "worker_main", "monitor_workers"})
"""vLLM's functions whose errors in the log are the end of its engine; others' are told to whom asked."""


class Engine(Protocol):
    """vLLM's EngineClient."""

    shutdown: Callable[..., None]
    """Called at the server's end, before its engine's process is killed."""

    @property
    def errored(self) -> bool: ...


class EngineProcess(Protocol):
    """A `multiprocessing.Process`."""

    name: str
    pid: int | None

    @property
    def exitcode(self) -> int | None: ...


def start(engine: Engine) -> None:
    """Watch from now on, in the process that started the engine's."""
    processes, told, shutdown = multiprocessing.active_children(), threading.Event(), engine.shutdown

    def told_to_end(*args: object, **kwargs: object) -> None:
        told.set()
        shutdown(*args, **kwargs)

    engine.shutdown = told_to_end
    arguments = (engine, processes, OomKills(), told)
    threading.Thread(target=_watch, args=arguments, name="rlhf-watchdog", daemon=True).start()


def _watch(
    engine: Engine, processes: Iterable[EngineProcess], oom_kills: OomKills, told: threading.Event
) -> None:
    dead_since: float | None = None
    while not told.wait(POLL_SECONDS):
        if dead_since is None and engine.errored:
            dead_since = time.monotonic()
        late = dead_since is not None and (
            time.monotonic() > dead_since + LINGER_SECONDS or termination.written()
        )
        cause = cause_of_death(processes, oom_kills.words(), late=late)
        if cause and not told.is_set():
            log.critical("%s; this server ends", cause)
            termination.write(cause)
            os._exit(EXIT_ENGINE_DEAD)
    time.sleep(LINGER_SECONDS)
    log.warning("requests under way have held up this server's end for %g s; it ends now", LINGER_SECONDS)
    os._exit(0)


def cause_of_death(processes: Iterable[EngineProcess], oom: str, *, late: bool) -> str:
    """Reason why the server must end now, empty where it need not. `oom`: what to say of a SIGKILL; `late`: the engine
    is dead, and has said why or its server had time enough to end with it."""
    for process in processes:
        if process.exitcode:
            return f"vLLM's process {process.name} (pid {process.pid}) {_end(process.exitcode)}" + (
                oom if process.exitcode == -signal.SIGKILL else ""
            )
    return "vLLM's engine is dead and its server did not end" if late else ""


def _end(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


class _Causes(logging.Handler):
    """Leaves the first fatal error of this process as the termination message."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._oom_kills = OomKills()

    def emit(self, record: logging.LogRecord) -> None:
        if record.funcName in FATAL:
            termination.write(fatal(record, self._oom_kills.words()))


def fatal(record: logging.LogRecord, oom: str) -> str:
    """The exception of a log record, or else its message; `oom`: what to say of a worker ended by SIGKILL."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        return f"{type(error).__name__}: {error}"
    killed = re.compile(rf"exit code: -{signal.SIGKILL:d}\b")
    unknown = re.compile("exit code: None")  # vLLM asks a moment too early
    return unknown.sub(rf"\g<0>{oom}", killed.sub(f"SIGKILL{oom}", record.getMessage()))


def quote_causes() -> None:
    """In each of vLLM's processes: have its fatal error quoted. What vLLM logs does not propagate beyond its logger."""
    logger = logging.getLogger("vllm")
    if not any(isinstance(handler, _Causes) for handler in logger.handlers):
        logger.addHandler(_Causes())
