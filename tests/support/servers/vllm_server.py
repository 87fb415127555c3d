"""Real vLLM servers for tests, started as the generators are."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.forked import warm
from tests.support.ports import free_port

READY_S = 300

ARGUMENTS = (
    *("--enforce-eager", "--dtype", "float32", "--max-model-len", "128", "--no-enable-chunked-prefill"),
    *("--weight-transfer-config", '{"backend": "rlhf"}'),
    *("--worker-extension-cls", "tests.support.servers.paced.Paced"),
    *("--middleware", "rlhf_trainer.engines.vllm.front.middleware.Front"),
    *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "256", "--served-model-name", "policy"),
    # Without these the engine's worker is a process more (10 s of imports, 600 MB) and 1 GiB of cache is touched.
    *("--distributed-executor-backend", "uni", "--kv-cache-memory-bytes", str(64 << 20)),
)
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",  # the watchdog ends it
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # what makes the CPU platform accept "uni"
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Server:
    """A vLLM server in a process group of its own."""

    process: subprocess.Popen
    address: str
    log: Path

    def wait_ready(self, timeout_s: float = READY_S) -> "Server":
        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"{self.address}/health", timeout=2).close()
                return self
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = "\n".join(self.log.read_text().splitlines()[-40:])
                raise RuntimeError(
                    f"vLLM is not ready (exit code {self.process.returncode}); its log ends:\n{tail}"
                )
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        """To all of its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()


def launch(
    model: Path,
    log: Path,
    *,
    token: str,
    port: int | None = None,
    arguments: tuple[str, ...] = (),
    **environ: str,
) -> Server:
    """Begins to start a server; several can start at once. `wait_ready` it, and stop it in a `finally`."""
    port = port or free_port()
    command = [sys.executable, "-m", "rlhf_trainer.engines.vllm.serve.server", "--model", str(model)]
    with log.open("ab") as out:
        process = warm.FromNursery(
            [*command, "--host", "127.0.0.1", "--port", str(port), *ARGUMENTS, *arguments],
            env=os.environ
            | ENVIRONMENT
            | {"RLHF_TOKEN": token, "RLHF_HOST": "127.0.0.1", "RLHF_PORT": str(port)}
            | environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(process, f"http://127.0.0.1:{port}", log)


def start(
    model: Path, log: Path, *, token: str, port: int | None = None, arguments: tuple[str, ...] = ()
) -> Server:
    return launch(model, log, token=token, port=port, arguments=arguments).wait_ready()
