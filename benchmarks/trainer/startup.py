"""Start-up cost of a role's process: processor seconds of all it starts, and seconds until it answers.

    .venv/bin/python benchmarks/trainer/startup.py [--times N]

Each role of a PPO job with a tiny model is started as a host starts it, alone, and ended when its `/health` answers,
which the trainer's does before its models are loaded: the median of N times. The trainer has two ranks.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from rlhf_api.contract.run import Process, RunConfig, command, environment
from rlhf_api.roles import HEALTH, Role
from rlhf_trainer.models.pretrained.load import load_reward, load_tokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.ports import free_port
from tests.support.tiny.models import tiny_model

LONGEST = 300.0


def job(folder: Path) -> RunConfig:
    model, reward = tiny_model(folder / "policy", tie=False, seed=1), folder / "reward"
    load_reward(str(model), torch.float32).save_pretrained(reward)
    load_tokenizer(str(model)).save_pretrained(reward)
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{i} is"}) + "\n" for i in range(64))
    )
    spec = {
        "algorithm": "ppo",
        "steps": 1,
        "model": {"policy": str(model), "reward": str(reward), "dtype": "float32"},
        "data": {"train": [str(folder / "prompts.jsonl")], "maxPromptLength": 16, "promptsPerStep": 8},
        "sampling": {"maxNewTokens": 16},
        "trainer": {"processesPerReplica": 2},
    }
    file = folder / "run.json"
    file.write_text(json.dumps({"job": "start", "workdir": str(folder / "run"), "spec": spec}))
    return RunConfig.model_validate_json(file.read_bytes())


def start(config: RunConfig, role: Role, folder: Path) -> tuple[float, float]:
    """Processor seconds, and seconds."""
    place = Process(role, 0, free_port(), "127.0.0.1", f"127.0.0.1:{free_port()}")
    own = environment(
        config, place, config_file=str(folder / "run.json"), termination_log=str(folder / "end")
    )
    began = time.monotonic()
    with (folder / f"{role}.log").open("wb") as log:
        process = subprocess.Popen(
            command(config, place, sys.executable),
            env=os.environ | own | {"RLHF_TOKEN": "token", "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while not answers(f"http://127.0.0.1:{place.port}{HEALTH}"):
            if process.poll() is not None or time.monotonic() > began + LONGEST:
                raise RuntimeError(
                    f"the {role} did not start: {(folder / f'{role}.log').read_text()[-3000:]}"
                )
            time.sleep(0.02)
        seconds = time.monotonic() - began
        top = psutil.Process(process.pid)
        times = [each.cpu_times() for each in (top, *top.children(recursive=True))]
        return sum(t.user + t.system + t.children_user + t.children_system for t in times), seconds
    finally:
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--roles", nargs="+", type=Role, default=list(Role))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = job(Path(name))
        print(f"{'role':<12} {'processor s':>12} {'s':>8}")
        for role in options.roles:
            each = [start(config, role, Path(name)) for _ in range(options.times)]
            cpu, wall = (statistics.median(column) for column in zip(*each, strict=True))
            print(f"{role:<12} {cpu:>12.1f} {wall:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
