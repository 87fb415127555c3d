"""A real vLLM server whose engine dies: it ends within seconds, whatever it has under way, and says of what."""

import json
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.support.forked.forks import forked
from tests.support.servers import vllm_server
from tests.support.servers.vllm_server import Server
from tests.unit.trainer.weights.support import TOKEN, generator, weights

from rlhf_trainer.engines.vllm.serve.watchdog import EXIT_ENGINE_DEAD

pytestmark = pytest.mark.slow
PATIENCE_SECONDS = 240
"""For a busy machine; vLLM alone would wait for ever."""


@dataclass
class Doomed:
    server: Server
    end: Path

    def process(self, title: str) -> psutil.Process:
        """vLLM's of that title, below the server."""
        below = psutil.Process(self.server.process.pid).children(recursive=True)
        (match,) = (process for process in below if title in process.cmdline()[0])
        return match

    def ask(self, path: str, body: dict) -> Iterator[bytes]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(self.server.address + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            yield from answer

    def message(self) -> str:
        """The reason of its end, which must have come by itself."""
        assert self.server.process.wait(PATIENCE_SECONDS) == EXIT_ENGINE_DEAD, self.server.log.read_text()
        return self.end.read_text()


@pytest.fixture
def launch(folder: Path, tmp_path: Path):
    with ExitStack() as stack:

        def launch(name: str, *arguments: str, **environ: str) -> Doomed:
            (tmp_path / name).mkdir()
            end = tmp_path / name / "end"
            server = vllm_server.launch(
                folder / "tied-0",
                tmp_path / name / "log",
                token=TOKEN,
                arguments=arguments,
                RLHF_TERMINATION_LOG=str(end),
                **environ,
            )
            stack.callback(server.kill)
            return Doomed(server, end)

        yield launch


def test_an_engine_in_bfloat16_lives_through_a_first_request_of_one_token(launch):
    """Too small for the libraries that ask the kernel for AMX: on processors with it vLLM's attention was SIGILL."""
    engine = launch("bfloat16", "--dtype", "bfloat16")
    engine.server.wait_ready()
    body = {"model": "policy", "prompt": [1], "max_tokens": 2}
    assert b'"completion_tokens":2' in b"".join(engine.ask("/v1/completions", body))


def test_an_engine_on_a_cpu_has_what_its_server_imported(tied):
    engine = Doomed(tied, tied.log).process("EngineCore")
    assert forked(engine.pid, tied.process.pid)
    ports = {connection.laddr.port for connection in engine.net_connections() if connection.laddr}
    assert int(tied.address.rpartition(":")[2]) not in ports  # else it would outlive a server that is killed


def test_an_engine_killed_idle_and_generating(launch):
    idle, generating = launch("idle"), launch("generating")
    for doomed in (idle, generating):
        doomed.server.wait_ready()

    engine = idle.process("EngineCore")
    engine.kill()
    assert idle.message() == f"vLLM's process EngineCore (pid {engine.pid}) was ended by SIGKILL\n"

    body = {"model": "policy", "prompt": [65], "max_tokens": 120, "ignore_eos": True, "n": 16, "stream": True}
    answer = generating.ask("/v1/completions", body)
    assert next(answer).startswith(b"data: ")
    generating.process("EngineCore").kill()
    with suppress(OSError):  # the connection breaks, or an error comes
        for _ in answer:
            pass
    assert "was ended by SIGKILL" in generating.message()


def test_an_engine_killed_in_a_commit_and_one_that_raises(launch, make_sync, models):
    committing = launch("committing", RLHF_FAULTS="tests.support.faults:kill_engine_in_swap")
    raising = launch("raising", "--worker-extension-cls", "tests.unit.trainer.weights.sabotage.Sabotage")
    for doomed in (committing, raising):
        doomed.server.wait_ready()

    target = generator(0, committing.server.address)
    report = make_sync().send([target], lambda: weights(models("tied", 1)), 2)
    assert report.holders == ()
    assert "was ended by SIGKILL" in committing.message()

    list(raising.ask("/collective_rpc", {"method": "spoil_steps"}))
    with suppress(OSError):
        list(raising.ask("/v1/completions", {"model": "policy", "prompt": [65], "max_tokens": 2}))
    *trace, cause = raising.message().splitlines()
    assert cause == "RuntimeError: spoilt for a test"
    assert trace[0] == "Traceback (most recent call last):"


def test_a_worker_killed_beside_its_engine(launch):
    """A generator with several GPUs has a worker process for each."""
    mp = ("--distributed-executor-backend", "mp")
    doomed = launch("worker", *mp, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    doomed.server.wait_ready()
    doomed.process("Worker").kill()
    # vLLM may ask for the exit code a moment before there is one; other tests here may run out of memory.
    how = r"(SIGKILL|exit code: None)( maybe for lack of memory \(.*\))?"
    words = rf"Worker proc VllmWorker-0 died unexpectedly \({how}\), shutting down executor\.\n"
    assert re.fullmatch(words, doomed.message())


def test_a_server_told_to_end_is_no_failure(launch):
    """vLLM kills its engine on shutdown, while a request whose body never arrives keeps the server running."""
    doomed = launch("ending")
    doomed.server.wait_ready()
    host, port = doomed.server.address.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection((host, int(port))) as half:
        half.sendall(head.encode())
        doomed.process("EngineCore")
        doomed.server.process.send_signal(signal.SIGTERM)
        assert doomed.server.process.wait(PATIENCE_SECONDS) == 0, doomed.server.log.read_text()
    assert not doomed.end.exists()
