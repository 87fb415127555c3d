"""Files of `rlhf init` run as they stand. A reward process that is stopped together with its supervisor: the trainer
says so, and Ctrl-C ends the run."""

import os
import signal
import time
from collections import Counter

import psutil
from tests.support.rlhf import finish, start
from tests.support.run_processes import listening
from tests.support.tiny.models import tiny_model

from rlhf_operator import cli

SECONDS = 15
"""Of `spec.reward.timeoutSeconds`: much less than the 150 s after which the host replaces a process that hangs."""


def test_a_stopped_reward_and_its_supervisor_are_noticed_and_hold_up_no_stop(tmp_path, monkeypatch):
    tiny_model(tmp_path / "model", tie=False, seed=0)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "--algorithm", "grpo", "--model", "model"]) == 0
    overrides = (
        f"spec.model.policy={tmp_path / 'model'}",
        f"spec.data.train=[{tmp_path / 'prompts.jsonl'}]",
        "spec.steps=100000",
        "spec.generator.sharedWithTrainer=true",
        "spec.grpo.klCoefficient=0",
        f"spec.reward.timeoutSeconds={SECONDS}",
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = start(tmp_path / "grpo.yaml", tmp_path / "run", *overrides, PYTHONPATH=paths)
    log = tmp_path / "run" / "logs" / "trainer-0.log"

    def until(text: str) -> None:
        deadline = time.monotonic() + 400
        while not log.exists() or text not in log.read_text():
            assert process.poll() is None, "the run has ended"
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    until("step 2/")
    ports = listening(psutil.Process(process.pid))
    assert {address for _, address, _ in ports} == {"127.0.0.1"}, "another machine reaches none"
    count = Counter(name for name, _, _ in ports)
    assert (count[""], count["reward-0"]) == (1, 1), "metrics, and scores"
    assert set(count) == {"", "reward-0", "trainer-0"}
    roles = [p for p in psutil.Process(process.pid).children(recursive=True)
             if "rlhf_trainer.roles.reward" in p.cmdline()]  # fmt: skip
    assert len(roles) == 2, "the supervisor and the process"
    for each in roles:
        each.suspend()
    until(f"no reward answered within {SECONDS} s")
    process.send_signal(signal.SIGINT)
    finished = finish(process, tmp_path / "run")
    assert finished.code == 130, finished.output
    assert finished.status["phase"] == "Suspended"
    assert "without a last checkpoint" not in finished.output
    assert "hung" not in finished.output, "the host has not replaced it"
