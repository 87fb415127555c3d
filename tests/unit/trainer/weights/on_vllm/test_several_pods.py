"""One generator of two processes, as of two pods: real vLLM servers that hold a half of the model each."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.support.forked import warm
from tests.support.ports import free_port
from tests.support.servers.vllm_server import Server
from tests.unit.trainer.weights.support import TOKEN, generator, serves, weights

from rlhf_trainer.transport.http import HttpError

pytestmark = pytest.mark.slow
SPEC = {
    "algorithm": "grpo",
    "steps": 1,
    "data": {"train": ["x.jsonl"], "maxPromptLength": 100},
    "sampling": {"maxNewTokens": 28},
    "generator": {"tensorParallelSize": 2, "podsPerReplica": 2},
    "reward": {"functions": [{"function": "a:b"}]},
}


@dataclass(frozen=True)
class Pair:
    engine: Server
    follower: subprocess.Popen[bytes]
    folder: Path

    def termination_message(self, rank: int) -> str:
        """The termination message."""
        return (self.folder / f"{rank}.end").read_text()


@pytest.fixture
def pair(folder: Path, tmp_path: Path) -> Iterator[Pair]:
    """Serves `untied-0` as `policy`."""
    spec = SPEC | {"model": {"policy": str(folder / "untied-0"), "dtype": "float32"}}
    config = tmp_path / "run.json"
    config.write_text(json.dumps({"job": "policy", "workdir": str(tmp_path), "spec": spec}))
    port, meeting = free_port(), free_port()
    common = {
        "RLHF_RUN_CONFIG": str(config),
        "RLHF_INDEX": "0",
        "RLHF_HOST": "127.0.0.1",
        "RLHF_PORT": str(port),
        "RLHF_MASTER": f"127.0.0.1:{meeting}",
        "RLHF_TOKEN": TOKEN,
        "OMP_NUM_THREADS": "1",
    }

    def start(rank: int) -> subprocess.Popen[bytes]:
        own = {"RLHF_RANK": str(rank), "RLHF_TERMINATION_LOG": str(tmp_path / f"{rank}.end")}
        with (tmp_path / f"{rank}.log").open("wb") as log:
            return warm.FromNursery(
                [sys.executable, "-m", "rlhf_trainer.roles.generator"],
                env=os.environ | common | own,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    processes = [start(rank) for rank in (0, 1)]
    engine = Server(processes[0], f"http://127.0.0.1:{port}", tmp_path / "0.log")
    try:
        yield Pair(engine.wait_ready(), processes[1], tmp_path)
    finally:
        for process in processes:
            Server(process, "", engine.log).kill()


def test_two_processes_serve_what_was_sent_and_neither_outlives_the_other(pair, http, make_sync, models):
    assert serves(http, pair.engine, models("untied", 0))
    target, sync = generator(0, pair.engine.address), make_sync()
    for version in (1, 2):
        new = models("untied", version)
        report = sync.send([target], lambda new=new: weights(new), version)
        assert (report.holders, report.lost) == ((target,), {})
        assert serves(http, pair.engine, new)
    url, ask = f"{pair.engine.address}/collective_rpc", {"method": "rlhf_status"}
    workers = http.run(http.json("POST", url, ask, timeout=120))["results"]
    assert [(w["rank"], w["version"], w["digest"]) for w in workers] == [
        (r, 2, report.digest) for r in (0, 1)
    ]
    assert [sync.changed([target]) for _ in range(2)] == ["", ""]

    pair.follower.terminate()
    assert serves(http, pair.engine, models("untied", 2)), (
        "its workers stay for as long as the engine answers"
    )
    assert pair.follower.poll() is None
    (worker,) = [p for p in psutil.Process(pair.follower.pid).children() if "Worker" in p.cmdline()[0]]
    worker.kill()
    assert pair.follower.wait(120) == 70
    assert (
        pair.termination_message(1)
        == f"vLLM's process VllmWorker-1 (pid {worker.pid}) was ended by SIGKILL\n"
    )
    # Not HttpError: the server has ended before it could say so, or takes no connection any more.
    with pytest.raises((HttpError, aiohttp.ClientError)):
        serves(http, pair.engine, models("untied", 2))
    assert pair.engine.process.wait(120) == 70
    assert "Worker failed with error" in pair.termination_message(0)


def test_a_process_that_was_told_to_end_does_when_the_engine_has():
    engine = socket.create_server(("127.0.0.1", 0))
    engine.settimeout(120)
    lines = [
        "import signal, threading",
        "from rlhf_trainer.engines.vllm.serve.follower import _end_after",
        "told = threading.Event()",
        "signal.signal(signal.SIGTERM, lambda *_: told.set())",
        f"threading.Thread(target=_end_after, args=(told, {engine.getsockname()})).start()",
        "print('begun', flush=True)",
        "threading.Event().wait()",
    ]
    process = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        for _ in range(2):
            engine.accept()[0].close()
        assert process.poll() is None, "it looks, and goes on"
        engine.close()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
