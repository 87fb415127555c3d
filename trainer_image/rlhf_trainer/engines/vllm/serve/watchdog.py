"""Watchdog thread that ends a vLLM server soon after its engine's process has died.

vLLM's own shutdown waits for all running requests, and one whose engine died may never end, so
VLLM_KEEP_ALIVE_ON_ENGINE_DEATH disables it. The termination message is the exception of the engine's process or of one
of its workers, written by `quote_causes`, else that process's exit status. A server that got SIGTERM kills its engine
itself: that is no failure.
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

from rlhf_api.host.oom import OomKills

from ....process import termination

log = logging.getLogger("vllm.rlhf")

POLL_SECONDS = 0.5
LINGER_SECONDS = 5.0
"""Grace period of a server after its engine was told to end, or died without an error message; seconds."""
FAREWELL_SECONDS = 0.5
"""Time in which a process that ends itself still answers."""
EXIT_ENGINE_DEAD = 70
"""EX_SOFTWARE; also the exit code of a worker that ends itself."""
FATAL = frozenset({"run_engine_core", "worker_main", "monitor_workers"})
"""Functions of vLLM whose logged errors mean the end of the engine; other errors are returned to the caller."""


class Engine(Protocol):
    """Protocol of vLLM's EngineClient."""

    shutdown: Callable[..., None]
    """Called at the server's shutdown, before its engine's process is killed."""

    @property
    def errored(self) -> bool: ...


class EngineProcess(Protocol):
    """Protocol of a `multiprocessing.Process`."""

    name: str
    pid: int | None

    @property
    def exitcode(self) -> int | None: ...


def start(engine: Engine) -> None:
    """Starts the watchdog, in the process that started the engine's."""
    processes, stop_requested, shutdown = (
        multiprocessing.active_children(),
        threading.Event(),
        engine.shutdown,
    )

    def told_to_end(*args: object, **kwargs: object) -> None:
        stop_requested.set()
        shutdown(*args, **kwargs)

    engine.shutdown = told_to_end
    arguments = (engine, processes, OomKills(), stop_requested)
    threading.Thread(target=_watch, args=arguments, name="rlhf-watchdog", daemon=True).start()


def _watch(
    engine: Engine, processes: Iterable[EngineProcess], oom_kills: OomKills, stop_requested: threading.Event
) -> None:
    dead_since: float | None = None
    while not stop_requested.wait(POLL_SECONDS):
        if dead_since is None and engine.errored:
            dead_since = time.monotonic()
        late = dead_since is not None and (
            time.monotonic() > dead_since + LINGER_SECONDS or termination.written()
        )
        cause = cause_of_death(processes, oom_kills.words(), late=late)
        if cause and not stop_requested.is_set():
            log.critical("%s; this server ends", cause)
            termination.write(cause)
            os._exit(EXIT_ENGINE_DEAD)
    time.sleep(LINGER_SECONDS)
    log.warning(
        "requests in progress have delayed this server's shutdown for %g s; it ends now", LINGER_SECONDS
    )
    os._exit(0)


def end_soon(cause: str) -> None:
    """Ends this process, a worker or its engine, whose memory is not what it must be: it must not serve, and vLLM's
    /health would stay healthy. The caller of the method that failed still gets its error."""
    log.critical("%s; this process ends", cause)
    termination.write(cause)
    threading.Timer(FAREWELL_SECONDS, os._exit, [EXIT_ENGINE_DEAD]).start()


def cause_of_death(processes: Iterable[EngineProcess], oom: str, *, late: bool) -> str:
    """Reason why the server must end now; empty otherwise. `oom`: text for a SIGKILL; `late`: the engine is dead and
    has left its error, or its grace period is over."""
    for process in processes:
        if process.exitcode:
            return f"vLLM's process {process.name} (pid {process.pid}) {_end(process.exitcode)}" + (
                oom if process.exitcode == -signal.SIGKILL else ""
            )
    return "vLLM's engine is dead and its server did not end" if late else ""


def _end(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


class _Causes(logging.Handler):
    """Log handler that writes the first fatal error of this process as the termination message."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._oom_kills = OomKills()

    def emit(self, record: logging.LogRecord) -> None:
        if record.funcName in FATAL:
            termination.write(fatal(record, self._oom_kills.words()), error=_exception(record))


def fatal(record: logging.LogRecord, oom: str) -> str:
    """A log record's exception, or else its message; `oom`: text for a worker ended by SIGKILL."""
    if (error := _exception(record)) is not None:
        return f"{type(error).__name__}: {error}"
    killed = re.compile(rf"exit code: -{signal.SIGKILL:d}\b")
    unknown = re.compile("exit code: None")  # vLLM asks before the process has ended
    return unknown.sub(rf"\g<0>{oom}", killed.sub(f"SIGKILL{oom}", record.getMessage()))


def _exception(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def quote_causes() -> None:
    """Installs the log handler in each of vLLM's processes; vLLM's logger does not propagate to the root logger."""
    logger = logging.getLogger("vllm")
    if not any(isinstance(handler, _Causes) for handler in logger.handlers):
        logger.addHandler(_Causes())
