"""vLLM's headless executor: the workers of a multi-pod generator that run in another pod than the engine. `python -m
rlhf_trainer.engines.vllm.serve.follower` takes the options of `vllm serve`.

It has no HTTP server. It exits with code 70 when one of its workers ends. vLLM does not detect here that the engine's
pod has ended: the host ends this pod then. After SIGTERM it keeps working until the engine has finished its requests.
"""

import os
import signal
import socket
import threading
import time
from multiprocessing import connection

from rlhf_api.host.oom import OomKills

from ....process import termination
from .watchdog import EXIT_ENGINE_DEAD, cause_of_death

POLL_SECONDS, TIMEOUT_SECONDS = 0.5, 2.0


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments, _ = parser.parse_known_args()  # the other ones belong to the HTTP server
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(headless=True)
    executor, oom_kills = MultiprocExecutor(config, monitor_workers=False), OomKills()
    engine = arguments.master_addr, int(os.environ["RLHF_PORT"])
    stop_requested = threading.Event()
    threading.Thread(target=_end_after, args=(stop_requested, engine), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())
    workers = {worker.proc.sentinel: worker.proc for worker in executor.workers}
    ended = [workers[sentinel] for sentinel in connection.wait(workers)]
    for worker in ended:
        worker.join()
    termination.write(cause_of_death(ended, oom_kills.words(), late=True))
    os._exit(EXIT_ENGINE_DEAD)


def _end_after(stop_requested: threading.Event, engine: tuple[str, int]) -> None:
    """After `stop_requested` is set, ends this process once the engine's address refuses connections; if that hangs,
    SIGKILL ends both.
    """
    stop_requested.wait()
    while _listens(engine):
        time.sleep(POLL_SECONDS)
    os._exit(0)


def _listens(engine: tuple[str, int]) -> bool:
    """True while the port is open: the kernel accepts connections for a hung process, not for a pod that is gone."""
    try:
        socket.create_connection(engine, TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
