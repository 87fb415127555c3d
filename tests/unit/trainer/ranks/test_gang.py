"""A trainer of two nodes, each a gang of its own as in a pod of its own: they train, stop and fall together."""

import json
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
from typing import Any

import psutil
import pytest
from tests.support.forked import warm
from tests.support.ports import free_port

from rlhf_api.contract.run import (
    CONTROL_STATUS,
    EXIT_INVALID,
    EXIT_SUSPENDED,
    Process,
    RunConfig,
    command,
    environment,
)
from rlhf_api.roles import Role
from rlhf_store.archive import Archive

pytestmark = pytest.mark.slow

ADDRESSES = ("127.0.0.1", "127.0.0.2")
PATIENCE_SECONDS = 240
MODEL = {
    "modelType": "llama",
    "tokenizer": {"vocabSize": 300},
    "config": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 2048,
    },
}


@dataclass
class Node:
    """One pod: its process 1 and what it leaves."""

    process: subprocess.Popen
    end: Path
    log: Path
    control: str
    """Where the trainer's status is, at the first node."""

    def ranks(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def activity(self) -> str | None:
        """As rank 0 tells its host; None before it listens."""
        request = urllib.request.Request(self.control, headers={"Authorization": "Bearer token"})
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return json.load(reply)["activity"]
        except urllib.error.URLError:
            return None

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(seconds)

    def destroy(self) -> None:
        """As when the machine goes: everything at once."""
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            with suppress(psutil.NoSuchProcess):  # it has ended with the one before
                process.kill()


@pytest.fixture
def start(tmp_path):
    rows = [json.dumps({"prompt": f"{i} and", "answer": f"{i + 1}"}) for i in range(32)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    nodes: list[Node] = []

    def start(steps: int, *, resume: bool = False, **more: Any) -> tuple[Node, Node]:
        spec = {
            "algorithm": "sft",
            "steps": steps,
            "model": {"create": MODEL, "dtype": "float32"},
            "data": {"train": [str(tmp_path / "rows.jsonl")], "promptsPerStep": 8},
            "trainer": {"replicas": 2},
            "checkpoint": {"everySteps": 100_000_000},
            **more,
        }
        made = {"job": "two", "workdir": str(tmp_path / "work"), "resume": resume, "spec": spec}
        file = tmp_path / "run.json"
        file.write_text(json.dumps(made))
        config = RunConfig.model_validate_json(file.read_bytes())
        master = f"{ADDRESSES[0]}:{free_port()}"
        for i, address in enumerate(ADDRESSES):
            place = Process(Role.TRAINER, i, free_port(), address, master)
            end, log = tmp_path / f"{place.name}.end", tmp_path / f"{place.name}.log"
            end.write_text("")  # a container's termination log is there from the start
            variables = environment(config, place, config_file=str(file), termination_log=str(end))
            with log.open("w") as out:
                process = warm.FromNursery(
                    command(config, place, sys.executable),
                    env=os.environ | variables | {"RLHF_TOKEN": "token", "OMP_NUM_THREADS": "1"},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            nodes.append(Node(process, end, log, f"http://{address}:{place.port}{CONTROL_STATUS}"))
        return nodes[-2], nodes[-1]

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.destroy()


def wait_for_step(tmp_path: Path, nodes: tuple[Node, Node], step: int) -> None:
    deadline, metrics = time.monotonic() + PATIENCE_SECONDS, tmp_path / "work" / "metrics.jsonl"
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= step):
        logs = "\n".join(node.log.read_text()[-2000:] for node in nodes)
        assert all(node.process.poll() is None for node in nodes), logs
        assert time.monotonic() < deadline, logs
        time.sleep(0.05)


def test_two_nodes_train_stop_together_when_one_is_drained_and_go_on(start, tmp_path):
    nodes = start(steps=100_000_000)
    wait_for_step(tmp_path, nodes, 2)
    nodes[1].process.send_signal(signal.SIGTERM)  # not the one of rank 0
    assert [node.wait() for node in nodes] == [EXIT_SUSPENDED] * 2, nodes[1].log.read_text()
    (saved,) = [cut.step for cut in Archive(f"file://{tmp_path}/work/checkpoints").entries()]
    assert saved >= 2
    nodes = start(steps=saved + 1, resume=True)
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].log.read_text()
    done = [
        json.loads(line)["step"] for line in (tmp_path / "work" / "metrics.jsonl").read_text().splitlines()
    ]
    assert done == list(range(1, saved + 2))


def test_a_drain_of_the_other_node_ends_the_generation_that_is_under_way(start, tmp_path):
    nodes = start(
        steps=1,
        algorithm="grpo",
        grpo={"klCoefficient": 0},
        generator={"sharedWithTrainer": True},
        reward={"functions": [{"function": "nobody:asks"}]},
        sampling={
            "maxNewTokens": 1500,
            "minNewTokens": 1500,
            "responsesPerPrompt": 256,
        },  # takes many minutes
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while nodes[0].activity() != "generating":
        assert nodes[0].process.poll() is None, nodes[0].log.read_text()
        assert time.monotonic() < deadline, nodes[0].log.read_text()
        time.sleep(0.05)
    nodes[1].process.send_signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [EXIT_SUSPENDED] * 2, nodes[1].log.read_text()
    assert [cut.step for cut in Archive(f"file://{tmp_path}/work/checkpoints").entries()] == [0]


def test_the_other_node_ends_when_one_is_lost(start, tmp_path):
    """It notices the broken connections; the deadline of a collective is two hours."""
    nodes = start(steps=100_000_000)
    wait_for_step(tmp_path, nodes, 2)
    nodes[1].destroy()
    assert nodes[0].wait() not in (0, EXIT_INVALID, EXIT_SUSPENDED)
    assert "another rank of the trainer" in nodes[0].end.read_text()
