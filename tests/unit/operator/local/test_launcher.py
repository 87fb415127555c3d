"""`rlhf run` with real processes: small stand-ins for the roles, each with a grandchild that ignores SIGTERM."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.forked import warm
from tests.support.forked.becoming import STAND_INS
from tests.support.rlhf import ROOT, heed_signals
from tests.support.run_processes import environ, processes
from tests.unit.api.manifests import document

from rlhf_operator.cluster.telemetry import Telemetry
from rlhf_operator.local.processes.temporary import temporary

PATIENCE_SECONDS = 240
"""More than anything takes, on a busy machine too."""
QUICK = ("spec.steps=4", "spec.generator.replicas=2")


class Run:
    """One `rlhf run` in its own directory; every process that it starts can be found by a variable of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "w"
        self.mark = f"RLHF_TEST_MARK={folder}"
        (folder / "p.jsonl").write_text('{"prompt": "hi"}\n')

    def start(
        self, *arguments: str, overrides: tuple[str, ...] = (), script: str = "", **roles: str
    ) -> subprocess.Popen[str]:
        """`script`: what the shell does whose process becomes the launcher; without one, it is forked from one that
        has imported it, as its roles are then."""
        made = document("spec.data.train[0]=p.jsonl", "spec.reward.functions=[]", *QUICK, *overrides)
        (self.folder / "job.yaml").write_text(yaml.safe_dump(made))
        plans = {f"FAKE_{role.upper()}": words for role, words in roles.items()}
        shell = ("sh", "-c", f'{script} exec "$@"', "sh") if script else ()
        launcher = (sys.executable, "-P", "-m", STAND_INS, "run", "job.yaml", "--workdir", "w", *arguments)
        return warm.FromNursery(
            [*shell, *launcher],
            cwd=self.folder,
            env={**os.environ, **plans, "PYTHONPATH": str(ROOT), "RLHF_TEST_MARK": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,
        )

    def __call__(
        self, *arguments: str, overrides: tuple[str, ...] = (), script: str = "", **roles: str
    ) -> tuple[int, str, str]:
        process = self.start(*arguments, overrides=overrides, script=script, **roles)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, out, err

    def status(self) -> Any:
        return json.loads((self.work / "status.json").read_text())

    def alive(self) -> list[str]:
        """The command lines of every living process of this run, the launcher's included."""
        commands = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    commands.append((process / "cmdline").read_text().replace("\0", " "))
        return commands

    def wait_for_checkpoint(self) -> None:
        """Until the launcher knows of one; it writes to its status what it knows."""
        file = self.work / "status.json"
        self.wait_for(lambda: file.exists() and self.status()["lastCheckpoint"], "a checkpoint")

    def reapers(self, launcher: subprocess.Popen[str]) -> dict[str, int]:
        """The process that supervises each role's, by the role's name."""
        children = [(environ(child), child.pid) for child in psutil.Process(launcher.pid).children()]
        return {variables["RLHF_NAME"]: pid for variables, pid in children if "RLHF_NAME" in variables}

    def uids(self, name: str) -> set[str]:
        """Of all starts of `name` that the trainer was told of."""
        pushed = [json.loads(line)[1] for line in (self.work / "members.jsonl").read_text().splitlines()]
        return {
            member["uid"]
            for membership in pushed
            for member in membership["members"]
            if member["name"] == name
        }

    def wait_for(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {what}"
            time.sleep(0.02)

    def wait_for_step(self, step: int) -> None:
        file = self.work / "metrics.jsonl"
        self.wait_for(lambda: file.exists() and f'"step": {step},' in file.read_text(), f"step {step}")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in Path("/proc").glob("[0-9]*"):  # only what a failed test left
        with contextlib.suppress(OSError):
            if made.mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def test_a_run_from_start_to_end(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    lines = [line.split(" ", 1)[1] for line in out.splitlines()]
    assert [line for line in lines if line.startswith("step ")] == [
        f"step {i}/4  reward {i / 10}  KL 0.01  100 tokens/s  0.1 s" for i in range(1, 5)
    ]
    assert {"trainer-0 started", "generator-1 is ready", "checkpoint of step 2"} <= set(lines)
    assert out.splitlines()[-3:] == ["done: 4 of 4 steps", "  w/policy", "  w/metrics.jsonl"]
    status = run.status()
    assert (status["phase"], status["step"], status["totalSteps"]) == ("Succeeded", 4, 4)
    assert status["roles"]["generator"] == {
        "desired": 2,
        "ready": 0,
        "restarts": 0,
        **dict.fromkeys(("teachers", "lastFailure")),
    }
    assert [(c["type"], c["status"], c["reason"]) for c in status["conditions"]] == [
        ("RolesReady", "False", "JobEnded"),
        ("Stalled", "False", "NotStalled"),
        ("Complete", "True", "Completed"),
    ]
    assert status["startTime"] <= status["completionTime"]
    assert (status["ledger"]["issued"], status["ledger"]["lost"]) == (4, 0)
    assert run.alive() == []


def test_a_store_that_fails_is_told_while_training_waits_for_it(run: Run) -> None:
    code, out, _ = run(trainer="full")
    assert code == 0
    lines = [line for line in out.splitlines() if "store" in line]
    assert [line.split(" ", 1)[1] for line in lines] == [
        "the checkpoint store fails, trying again: No space left on device"
    ]


def test_a_status_that_cannot_be_written_does_not_end_the_run(run: Run) -> None:
    (run.work / ".status.json.new").mkdir(parents=True)  # where a full disk would refuse the file
    code, out, err = run()
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if "status.json" in line]
    assert [line.split(" ", 1)[1] for line in lines] == [
        f"{run.work}/status.json cannot be written: Is a directory; the run goes on"
    ]


def test_a_launcher_that_cannot_go_on_says_why_and_how_to(run: Run) -> None:
    (run.work / "logs" / "generator-1.log").mkdir(parents=True)
    code, _, err = run()
    assert (code, run.status()["phase"]) == (1, "Failed")
    assert "error: `rlhf run` cannot go on: [Errno 21] Is a directory: " in err
    assert "generator-1.log" in err
    assert run.alive() == []


def test_a_work_directory_that_is_moved_away_ends_the_run_and_is_gone_on_from_where_it_is_put_back(
    run: Run, usual: Path
) -> None:
    process = run.start(trainer="hold")
    run.wait_for_checkpoint()
    run.work.rename(run.folder / "elsewhere")
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert err == (
        f"error: the work directory {run.work} was moved or deleted while the run used it; put it back\n"
        "the newest checkpoint is of step 2; go on with `rlhf run job.yaml --workdir w --resume`, or get its model "
        "with `rlhf checkpoint export s3://bucket/prefix 2 w/policy-2`\n"
    )
    assert run.alive() == []
    assert list(usual.iterdir()) == []
    (run.folder / "elsewhere").rename(run.work)  # nobody has made another one there
    code, out, _ = run("--resume", trainer="serve")
    assert code == 0
    assert "step 3/4" in out
    assert "step 1/4" not in out


def test_a_resumed_run_goes_on_counting_restarts(run: Run) -> None:
    process = run.start(trainer="hold", generator="die serve")
    run.wait_for_checkpoint()
    run.wait_for(lambda: run.status()["restarts"] == 2, "two restarts")
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    run.wait_for(lambda: not run.alive(), "the end of its processes")
    assert run("--resume", trainer="serve", generator="serve")[0] == 0
    assert run.status()["roles"]["generator"]["restarts"] == run.status()["restarts"] == 2


def test_a_run_whose_streams_are_closed_is_one_like_others(run: Run) -> None:
    process = run.start(script="exec <&- >&- 2>&-;")
    assert process.wait(PATIENCE_SECONDS) == 0
    assert run.status()["phase"] == "Succeeded"


def test_prompts_that_were_not_trained_on_are_the_last_word(run: Run) -> None:
    code, _, err = run(trainer="drops")
    assert code == 0
    assert err.splitlines()[-1] == (
        "warning: 1 prompts were dropped and 0 lost: they were not trained on; see w/logs/trainer-0.log"
    )


def test_an_earlier_run_that_saved_nothing_is_said_to_have_saved_nothing(run: Run) -> None:
    code, _, _ = run(trainer="invalid")
    assert code == 1
    code, _, err = run()
    assert (code, err) == (
        2,
        "error: w: an earlier run is in it, Failed at step 0 of 4, which saved no checkpoint; "
        "add --overwrite to delete it and start anew, or --workdir DIR to run elsewhere\n",
    )


def test_an_earlier_run_is_kept_unless_told_otherwise(run: Run) -> None:
    assert run()[0] == 0
    before = (run.work / "metrics.jsonl").read_text()

    code, _, err = run()
    assert code == 2
    assert err == (
        "error: w: an earlier run is in it, Succeeded at step 4 of 4; "
        "add --resume to go on from its checkpoint of step 2, --workdir DIR to run elsewhere, "
        "or --overwrite to delete it and start anew\n"
    )

    code, out, _ = run("--resume")
    assert (code, out) == (0, "w already has all 4 steps; raise spec.steps to go on\n")

    code, _, err = run("--resume", overrides=("spec.seed=1", "spec.model.policy=other"))
    assert code == 2
    assert "error: spec.model.policy: the run in w has 'org/policy'" in err
    assert "error: spec.seed: the run in w has 0, which --resume cannot change; got 1" in err
    assert (run.work / "metrics.jsonl").read_text() == before

    other = ("spec.steps=6", "spec.reward.scale=2")
    code, _, err = run("--resume", overrides=other)
    assert (code, err.count("\n")) == (2, 1)
    assert "error: spec.reward.scale: the run in w has 1.0, got 2.0" in err
    code, out, _ = run("--resume", "--accept-changes", overrides=other)
    assert code == 0
    assert "resuming job, ppo, 6 steps" in out
    assert "changed since the last start: spec.steps: 4 -> 6" in out
    assert "changed since the last start: spec.reward.scale: 1.0 -> 2.0" in out
    assert "step 6/6" in out
    assert "step 1/6" not in out
    assert json.loads((run.work / "run.json").read_text())["resume"] is True

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run("--overwrite", "--base-port", str(port))
        assert code == 2
        assert err.startswith(f"error: --base-port: port {port} of trainer-0 is taken; ")
    assert (run.work / "policy").exists()

    code, out, _ = run("--overwrite")
    assert code == 0
    assert len((run.work / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_generator_that_dies_comes_back_under_a_new_uid(run: Run) -> None:
    code, out, _ = run(generator="die serve", trainer="renewed")
    assert code == 0
    assert "generator-0 was ended by SIGKILL; see w/logs/generator-0.log" in out
    assert "generator-0 started again" in out
    assert run.status()["roles"]["generator"]["restarts"] == 2
    pushed = [
        json.loads(line)[1]["members"] for line in (run.work / "members.jsonl").read_text().splitlines()
    ]
    uids = {m["uid"] for members in pushed for m in members if m["name"] == "generator-0"}
    assert len(uids) == 2
    assert {m["uid"] for members in pushed for m in members if m["name"] == "reward-0"} == {
        pushed[0][-2]["uid"]
    }
    log = (run.work / "logs" / "generator-0.log").read_text()
    assert log.count("=== ") == 2


@pytest.mark.parametrize(("first", "second"), [("serve", "die serve"), ("die serve", "serve")])
def test_a_generator_of_two_processes_lives_and_dies_as_one(run: Run, first: str, second: str) -> None:
    """If either is killed, both are restarted, which counts once; the trainer knows only the first process."""
    pair = "spec.generator={replicas: 1, tensorParallelSize: 2, podsPerReplica: 2}"
    code, out, _ = run(overrides=(pair,), generator=first, follower=second, trainer="renewed")
    assert code == 0
    dead, peer = ("generator-0", "generator-0-1")[:: 1 if first.startswith("die") else -1]
    assert f"{dead} was ended by SIGKILL; see w/logs/{dead}.log" in out
    assert f"{peer} its peer {dead} was ended by SIGKILL" in out
    assert run.status()["roles"]["generator"] == {
        "desired": 1,
        "ready": 0,
        "restarts": 1,
        **dict.fromkeys(("teachers", "lastFailure")),
    }
    for name in ("generator-0", "generator-0-1"):
        assert (run.work / f"{name}.starts").read_text() == "x\nx\n"
    pushed = [
        json.loads(line)[1]["members"] for line in (run.work / "members.jsonl").read_text().splitlines()
    ]
    generators = {(m["name"], m["uid"]) for members in pushed for m in members if m["role"] == "generator"}
    assert {name for name, _ in generators} == {"generator-0"}
    assert len(generators) == 2


def test_a_trainer_that_dies_goes_on_from_its_checkpoint(run: Run) -> None:
    code, out, _ = run(trainer="crash serve")
    assert code == 0
    assert "trainer-0 exited with code 1: ValueError: loss is nan; see w/logs/trainer-0.log" in out
    assert [
        line.split("step ")[1][0] for line in out.splitlines() if " step " in line and "/4" in line
    ] == list("1234")
    starts = [json.loads(line)[0] for line in (run.work / "members.jsonl").read_text().splitlines()]
    assert set(starts) == {1, 2}  # the second trainer was told who serves it, too


def test_a_trainer_that_dies_before_its_first_checkpoint_starts_anew(run: Run) -> None:
    code, out, _ = run(trainer="crash-unsaved serve")
    assert code == 0
    assert "trainer-0 exited with code 1: ValueError: loss is nan" in out
    assert "trainer-0 started again" in out


def test_a_role_that_ends_by_itself_is_started_again_and_no_line_of_its_log_is_blamed(run: Run) -> None:
    code, out, _ = run(reference="exit0 serve")
    assert code == 0
    assert "reference-0 exited with code 0; see w/logs/reference-0.log" in out


def test_a_role_that_a_library_ends_says_in_its_log_where(run: Run) -> None:
    code, out, _ = run(script=":;", reference="segfault serve")  # with few libraries, all of which it names
    assert code == 0
    assert "reference-0 was ended by SIGSEGV: Fatal Python error: Segmentation fault; see w/logs/" in out
    assert "in string_at" in (run.work / "logs" / "reference-0.log").read_text()


def test_logs_have_a_bounded_size_and_their_last_error_is_still_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_TEST_LOG_BYTES", "2000")
    code, _, err = run(
        overrides=("spec.generator.backoffLimit=0",),
        trainer="idle",
        generator="flood",
    )
    assert code == 1
    assert "exited with code 3: ValueError: at the end of the flood" in err
    logs = run.work / "logs"
    names = sorted(file.name for file in logs.iterdir() if file.name.startswith("generator-0.log"))
    assert names == ["generator-0.log", *(f"generator-0.log.{number}" for number in (1, 2, 3))]
    assert max((logs / name).stat().st_size for name in names[1:]) <= 4000


def test_a_trainer_that_somebody_else_tells_to_stop_suspends_the_run(run: Run) -> None:
    code, _, err = run(trainer="told")
    assert code == 130
    assert err == (
        "the trainer was told to stop, by a signal or its API; go on with `rlhf run job.yaml --workdir w --resume`\n"
    )


FAILURES = [
    (
        {"trainer": "idle", "reward": "invalid"},
        "error: reward-0 exited with code 78: the model does not fit its tokenizer; see w/logs/reward-0.log\n",
        "InvalidConfiguration",
    ),
    (
        {"trainer": "idle", "generator": "exit3"},
        "error: generator-0 exited with code 3: last words of generator; see w/logs/generator-0.log "
        "(started again 1 of 1 times within 3600 s)\n",
        "BackoffLimitExceeded",
    ),
    (
        {"trainer": "idle", "reference": "silent"},
        "error: reference-0 did not answer within 1 s (spec.reference.startupTimeoutSeconds); "
        "see w/logs/reference-0.log (spec.reference.backoffLimit is 0)\n",
        "BackoffLimitExceeded",
    ),
]


@pytest.mark.parametrize(("roles", "message", "reason"), FAILURES, ids=[reason for _, _, reason in FAILURES])
def test_failures_say_what_failed_and_leave_nothing(
    run: Run, roles: dict[str, str], message: str, reason: str
) -> None:
    limits = ["spec.generator.replicas=1", "spec.generator.backoffLimit=1", "spec.reference.backoffLimit=0"]
    if "reference" in roles:
        limits.append("spec.reference.startupTimeoutSeconds=1")
    code, out, err = run(overrides=tuple(limits), **roles)
    assert (code, err) == (1, message)
    end = message[7:-1].partition(" (")[0]
    before = 1 if "started again 1 of 1 times" in message else 0
    assert out.count(end) == before, "each end of a process is told once, the last one as the error"
    status = run.status()
    assert (status["phase"], status["message"]) == ("Failed", message[7:-1])
    assert [c["reason"] for c in status["conditions"] if c["type"] == "Failed"] == [reason]
    assert run.alive() == []


def test_an_interrupt_stops_everything_after_a_checkpoint(run: Run) -> None:
    options = ("--set", "optimizer.weightDecay=0.125", "--trial", "b")
    process = run.start(*options, trainer="hold", generator="stubborn")
    run.wait_for_step(2)
    run.wait_for(lambda: run.status().get("lastCheckpoint"), "the launcher knows of the checkpoint")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    command = f"rlhf run job.yaml {shlex.join(options)} --workdir w --resume"
    assert err == (
        f"stopped on request; go on with `{command}`, or get its model with "
        "`rlhf checkpoint export s3://bucket/prefix 2 w/policy-2`\n"
    )
    assert run.alive() == []
    assert run.status()["phase"] == "Suspended"

    code, out, _ = run(*shlex.split(command)[3:], trainer="serve")
    assert code == 0
    assert "step 3/4" in out
    assert "step 1/4" not in out
    assert "changed since the last start" not in out


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def test_temporary_files_of_processes_go_with_the_run_or_with_its_next_start(run: Run, usual: Path) -> None:
    process = run.start(trainer="hold")
    run.wait_for_step(2)
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    run.wait_for(lambda: not run.alive(), "the end of its processes")
    (left,) = usual.iterdir()
    assert {file.name.rpartition("-")[0] for file in left.iterdir()} > {"trainer-0", "generator-1"}
    assert run("--resume", trainer="serve")[0] == 0
    assert list(usual.iterdir()) == []
    assert not (run.work / ".tmp").exists()


def test_a_path_too_long_for_sockets_gets_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, own in ((51, True), (52, True), (53, False)):
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="x" * (size - len("/tmp/12345678"))) as name:
            assert len(name) == size
            monkeypatch.setattr(tempfile, "tempdir", name)
            with temporary(tmp_path, {}, print) as variables:
                assert ("TMPDIR" in variables) == own
                if own:
                    assert len(f"{variables['TMPDIR']}/{uuid.uuid4()}") <= 107
            assert list(Path(name).iterdir()) == []


def test_a_trainer_too_busy_to_answer_is_asked_to_stop_again(run: Run) -> None:
    """An optimizer's step on CPUs may keep its HTTP server waiting for longer than a request."""
    process = run.start(trainer="busy")
    run.wait_for_step(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert err == (
        "stopped on request; go on with `rlhf run job.yaml --workdir w --resume`, or get its model with "
        "`rlhf checkpoint export s3://bucket/prefix 2 w/policy-2`\n"
    )
    assert run.alive() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_so_do_other_signals(run: Run, number: signal.Signals) -> None:
    process = run.start(trainer="hold")
    run.wait_for_step(2)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert err.startswith("stopped on request")
    assert run.alive() == []


def test_a_run_that_was_told_to_outlive_its_terminal_does(run: Run) -> None:
    """By nohup, or as a shell's background job."""
    process = run.start(script="trap '' HUP;", trainer="hold")
    run.wait_for_checkpoint()
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert err.startswith("stopped on request; "), "two signals that count would not wait for a checkpoint"
    assert out.count("stopping after a checkpoint") == 1


def test_a_trainer_that_does_not_stop_is_ended_after_its_grace(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_TEST_STOP_SECONDS", "0.5")
    process = run.start(trainer="deaf")
    run.wait_for_checkpoint()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "without a last checkpoint; the newest checkpoint is of step 2" in err
    assert run.alive() == []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher waits for what it stops as if for ever: a test ends only where it does not wait."""
    monkeypatch.setenv("RLHF_TEST_STOP_SECONDS", "3600")


@pytest.mark.usefixtures("patient")
def test_a_second_interrupt_does_not_wait(run: Run) -> None:
    """For the trainer's checkpoint, nor for the reward, which ignores SIGTERM."""
    process = run.start(trainer="deaf", reward="stubborn")
    run.wait_for_checkpoint()
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while "stopping after a checkpoint" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert err.startswith(
        "stopped on request, without a last checkpoint; the newest checkpoint is of step 2; "
    )
    assert run.alive() == []


@pytest.mark.usefixtures("patient")
def test_an_interrupt_before_the_trainer_is_up_does_not_wait(run: Run) -> None:
    process = run.start(trainer="silent")
    run.wait_for((run.work / "trainer-0.starts").exists, "the trainer's start")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "nothing is saved yet" in err
    assert run.alive() == []


def test_nothing_outlives_a_launcher_that_is_killed(run: Run) -> None:
    process = run.start(trainer="hold", generator="stubborn")
    run.wait_for_step(2)
    # The launcher; for each role its reaper, itself, a grandchild and its child.
    run.wait_for(lambda: len(run.alive()) == 1 + 5 * 4, "every process")
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    run.wait_for(lambda: run.alive() == [], "the end of every process")
    # What it leaves can be gone on from; the lock does not outlive it.
    assert run("--resume", trainer="serve")[0] == 0


@pytest.mark.parametrize("role", ["trainer", "generator", "reward", "reference"])
def test_nothing_outlives_a_reaper_that_is_killed_and_its_role_starts_again(run: Run, role: str) -> None:
    """The stand-ins end with an error where anything of an earlier start is left."""
    process = run.start(trainer="hold serve" if role == "trainer" else "hold")
    run.wait_for_checkpoint()
    os.kill(run.reapers(process)[f"{role}-0"], signal.SIGKILL)
    starts = run.work / f"{role}-0.starts"
    run.wait_for(lambda: starts.read_text().count("x") == 2, f"a new {role}")
    if role != "trainer":
        run.wait_for(lambda: len(run.uids(f"{role}-0")) == 2, "the trainer's word of it")
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == (0 if role == "trainer" else 130), err
    lost = f"{role}-0 lost its supervising process, which was ended by SIGKILL; see w/logs/{role}-0.log"
    assert lost in out
    assert f"{role}-0 started again" in out
    assert {name: role_status["restarts"] for name, role_status in run.status()["roles"].items()} == {
        name: int(name == role) for name in ("trainer", "generator", "reward", "reference")
    }
    assert run.alive() == []


def test_all_reapers_killed_at_once_leave_nothing(run: Run) -> None:
    process = run.start(trainer="hold serve")
    run.wait_for_checkpoint()
    for reaper in run.reapers(process).values():
        os.kill(reaper, signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    assert {role_status["restarts"] for role_status in run.status()["roles"].values()} == {1, 2}
    assert run.alive() == []


def test_a_role_that_is_killed_leaves_nothing_and_starts_again(run: Run) -> None:
    process = run.start(trainer="hold serve")
    run.wait_for_checkpoint()
    for name, reaper in run.reapers(process).items():
        (command,) = psutil.Process(reaper).children()
        if name in ("trainer-0", "reward-0", "reference-0"):
            command.kill()
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    for name in ("trainer-0", "reward-0", "reference-0"):
        assert f"{name} was ended by SIGKILL; see w/logs/{name}.log" in out
    assert [role_status["restarts"] for role_status in run.status()["roles"].values()] == [1, 0, 1, 1]
    assert run.alive() == []


def test_a_role_that_hangs_is_ended_and_starts_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_TEST_LIVE_SECONDS", "0.2")
    process = run.start(trainer="hold serve")
    run.wait_for_checkpoint()
    for name, reaper in run.reapers(process).items():
        (command,) = psutil.Process(reaper).children()
        if name in ("generator-1", "reward-0"):
            command.suspend()
        if name == "trainer-0":
            trainer = command
    for name in ("generator-1", "reward-0"):
        run.wait_for(lambda name=name: len(run.uids(name)) == 2, f"{name} under a new uid")
    trainer.kill()
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    for name in ("generator-1", "reward-0"):
        assert f"{name} hung: it gave no sign of life for 1.2 s; see w/logs/{name}.log" in out
    assert [role_status["restarts"] for role_status in run.status()["roles"].values()] == [1, 1, 1, 0]
    assert run.alive() == []


@pytest.mark.parametrize("how", ["stopped", "stuck"])
def test_a_trainer_without_progress_is_ended_and_goes_on_from_its_checkpoint(
    run: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either it no longer answers, or it reports no progress, for a while and then for good. The user is told of each
    silence once, before it ends the trainer."""
    monkeypatch.setenv("RLHF_TEST_SILENCE", str(run.work))
    code, out, err = run(trainer=f"{how} serve", overrides=("spec.trainer.progressDeadlineSeconds=600",))
    assert code == 0, out + err
    field = r"(spec.trainer.progressDeadlineSeconds)"
    silence = f"no progress since TIME, last seen training; it is started again at TIME {field}"
    progress_lines = [
        re.sub(r"\d{4}-\S+Z", "TIME", line.split(" ", 1)[1])
        for line in out.splitlines()
        if "progress" in line
    ]
    again = [f"the trainer has made {silence}", "the trainer makes progress again"] if how == "stuck" else []
    ended = f"trainer-0 made no progress for 600 s, last seen training {field}; see w/logs/trainer-0.log"
    assert progress_lines == [*again, f"the trainer has made {silence}", ended]
    (condition,) = (c for c in run.status()["conditions"] if c["type"] == "Stalled")
    assert (condition["status"], condition["reason"]) == ("False", "NotStalled")
    steps = [line.split("step ")[1][0] for line in out.splitlines() if " step " in line and "/4" in line]
    assert steps == list("1234")
    assert run.status()["roles"]["trainer"]["restarts"] == 1
    assert run.alive() == []


@pytest.fixture
def memory_group(tmp_path: Path) -> Iterator[Path]:
    """A control group of 64 MiB, where this machine lets us make one of version 1."""
    groups = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mine = next((path for _, controllers, path in groups if controllers == "memory"), None)
    group = Path(f"/sys/fs/cgroup/memory{mine}", tmp_path.name)
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group can be made: {error}")
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    yield group
    group.rmdir()


def test_an_out_of_memory_kill_is_named_as_such(run: Run, memory_group: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_MEMORY_GROUP", str(memory_group))
        code, out, _ = run(reward="oom serve")
    assert code == 0
    # The groups of version 1 have no count of their own.
    guess = "maybe for lack of memory (the machine's count of out-of-memory kills rose by "
    assert f"reward-0 was ended by SIGKILL {guess}" in out


def test_a_reaper_that_is_stopped_does_not_hold_up_the_end(run: Run) -> None:
    process = run.start(trainer="hold", generator="stubborn")
    run.wait_for_step(2)
    for reaper in run.reapers(process).values():
        os.kill(reaper, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while "stopping after a checkpoint" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert run.alive() == []


def test_two_runs_cannot_share_a_work_directory(run: Run) -> None:
    process = run.start(trainer="hold")
    run.wait_for_step(1)
    code, _, err = run("--resume")
    assert code == 2
    assert err == "error: w: another `rlhf run` is using it now; wait for its end or give another --workdir\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)


def test_the_token_is_in_no_file_and_no_command_line(run: Run) -> None:
    process = run.start(trainer="hold")
    run.wait_for_step(2)
    given = environ(processes(run.work, "trainer-0")[0])
    token = given["RLHF_TOKEN"]
    assert len(token) == 64
    assert not any(token in line for line in run.alive())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert not any(token in f.read_text() for f in run.folder.rglob("*") if f.is_file())


def test_a_run_has_the_metrics_that_the_operator_has_of_a_job(run: Run) -> None:
    process = run.start(trainer="hold")
    assert process.stdout is not None
    words = next(line for line in process.stdout if " metrics on " in line)
    url = words.split(" metrics on ")[1].strip()

    def scraped() -> dict[str, tuple[dict[str, str], float]]:
        text = urllib.request.urlopen(url, timeout=PATIENCE_SECONDS).read().decode()
        families = text_string_to_metric_families(text)
        return {
            sample.name: (sample.labels, sample.value) for family in families for sample in family.samples
        }

    def same_names() -> bool:
        """As the operator makes of the same status."""
        operator = Telemetry()
        operator.job(("team", "job"), run.status())
        samples = [sample for family in operator.registry.collect() for sample in family.samples]
        return set(scraped()) == {s.name for s in samples if s.name.startswith("rlhf_job_")}

    run.wait_for_checkpoint()
    run.wait_for(lambda: scraped().get("rlhf_job_generators_ready", ({}, 0))[1] == 2, "two generators")
    run.wait_for(lambda: "rlhf_job_last_checkpoint_step" in scraped(), "a checkpoint")
    run.wait_for(same_names, "the operator's names")
    samples, labels = scraped(), {"namespace": "local", "rlhfjob": "job"}
    assert samples["rlhf_job_phase"] == ({**labels, "phase": "Running"}, 1.0)
    assert samples["rlhf_job_total_steps"] == (labels, 4.0)
    assert samples["rlhf_job_reward"] == (labels, samples["rlhf_job_step"][1] / 10)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=PATIENCE_SECONDS)


def test_several_trainers_meet_at_one_rendezvous(run: Run) -> None:
    overrides = (
        "spec.algorithm=sft",
        "spec.ppo={}",
        "spec.trainer.replicas=2",
        "spec.steps=2",
        "spec.generator.replicas=1",
    )
    (run.folder / "p.jsonl").write_text('{"prompt": "hi", "answer": "a"}\n')
    code, out, err = run(overrides=overrides)
    assert (code, err) == (0, "")
    assert "job, sft, 2 steps on trainer x 2" in out
    assert {f.name for f in (run.work / "logs").glob("*.log")} == {"trainer-0.log", "trainer-1.log"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("spec.data.train[0]=none.jsonl",), "spec.data.train[0]: none.jsonl: cannot be read: No such file"),
        (("spec.model.reward=./none",), "spec.model.reward: no such directory"),
        (
            ("spec.evaluation.data=[p.jsonl]", "spec.evaluation.function=nowhere:f"),
            "no module 'nowhere' in ",
        ),
        (("spec.sampling.topK=-2",), "spec.sampling.topK: must be greater than or equal to -1; got -2"),
    ],
)
def test_nothing_starts_for_a_bad_job(run: Run, overrides: tuple[str, ...], words: str) -> None:
    code, out, err = run(*(f"--set={override}" for override in overrides))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert not run.work.exists()


def test_logs_that_a_user_has_deleted_cost_a_restart_nothing(run: Run) -> None:
    process = run.start(trainer="hold serve")
    run.wait_for_checkpoint()
    for log in (run.work / "logs").glob("*.log"):
        log.unlink()
    for reaper in run.reapers(process).values():
        os.kill(reaper, signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, ""), out
    assert run.status()["phase"] == "Succeeded"
    assert run.alive() == []


def test_what_a_script_started_before_it_became_the_launcher_goes_on(run: Run) -> None:
    """For example TensorBoard, started by a script that then runs `exec rlhf run`."""
    process = run.start(trainer="crash serve", script="sleep 600 >/dev/null 2>&1 &")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert run.alive() == ["sleep 600 "]


def test_a_run_that_cannot_be_resumed_leaves_no_directory(run: Run) -> None:
    code, _, err = run("--resume", overrides=("spec.checkpoint.store=null",))
    assert (code, err.count("\n")) == (2, 1)
    assert "holds no run to go on from" in err
    assert not run.work.exists()
    code, _, err = run("--accept-changes")
    assert (code, err) == (2, "error: --accept-changes applies only to --resume; leave it out\n")
