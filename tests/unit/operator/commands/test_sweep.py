"""`rlhf sweep`: what it tries, and the runs of it, with stand-in roles."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.kubernetes.kube import eventually
from tests.support.rlhf import heed_signals
from tests.support.run_processes import processes

from rlhf_api.contract.run import EXIT_UNHEALTHY
from rlhf_api.errors.problem import InvalidJob
from rlhf_operator import cli
from rlhf_operator.commands import sweep
from rlhf_operator.commands.sweep_values import draw, parse_values, trial_name
from rlhf_operator.commands.trials import divide_gpus
from rlhf_operator.local import run_process
from rlhf_operator.local.records.workdir import is_held

RATES = "optimizer.learningRate=[1e-5, 1e-4]"


def starts(trial: Path) -> int:
    return len((trial / "trainer-0.starts").read_text().splitlines())


def test_a_killed_sweep_goes_on_and_runs_no_finished_trial_again(small_job, monkeypatch, capsys):
    command = ["sweep", str(small_job), RATES, "--set", "steps=4"]
    killed = subprocess.Popen(
        [sys.executable, "-m", run_process.PROGRAM, *command],
        env=os.environ | {"FAKE_TRAINER": "hold"},
        stdout=subprocess.DEVNULL,
        preexec_fn=heed_signals,
    )
    first = Path("runs/job-1e-5-9ec76f")
    eventually(lambda: (first / "saved").exists(), "a checkpoint is saved", 120)
    killed.kill()
    killed.wait()
    eventually(lambda: not processes(first.resolve()), "its processes end with it", 60)
    eventually(lambda: not is_held(first), "its trial's run ends too", 60)

    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    second = Path("runs/job-1e-4-316414")
    assert [len((trial / "metrics.jsonl").read_text().splitlines()) for trial in (first, second)] == [4, 4]
    assert (starts(first), starts(second)) == (2, 1)
    assert f"{first.name} | " in printed
    assert re.search(r"spec.optimizer.learningRate +1e-05 +0.0001\nphase +Succeeded +Succeeded", printed)
    assert "checkpoint.store" not in printed, "each trial has one of its own"

    monkeypatch.setenv("FAKE_TRAINER", f"exit{EXIT_UNHEALTHY}")
    more = ["sweep", str(small_job), "optimizer.learningRate=[1e-5, 1e-4, 1.0]", "--set", "steps=4"]
    assert cli.main(more) == 0, "a trial that a health rule ends does not fail the sweep"
    printed = capsys.readouterr().out
    assert "3 trials, 2 of them ended earlier" in printed
    assert re.search(r"job-1-0-\w{6} was ended by a rule of spec.health", printed)
    assert "Failed (HealthRule)" in printed
    assert cli.main(more) == 0
    assert "3 trials, 3 of them ended earlier" in capsys.readouterr().out

    assert cli.main([*command[:3], "--set", "steps=5"]) == 2
    assert f"{first}: holds a trial of another sweep (spec.steps: 4 -> 5)" in capsys.readouterr().err


def test_an_interrupt_stops_all_trials_that_run_after_a_checkpoint(small_job, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_TRAINER", "hold")

    def interrupt() -> None:
        eventually(lambda: len(list(Path("runs").glob("*/saved"))) == 2, "both have saved a checkpoint", 120)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert cli.main(["sweep", str(small_job), RATES, "seed=[1, 2]", "--max-parallel", "2"]) == 130
    captured = capsys.readouterr()
    assert captured.err.endswith("stopped on request; go on with the same command\n")
    assert re.search(r"phase +Suspended +Suspended\n", captured.out), "the others have not begun"


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ([], ["sweep: has nothing to try; give path=[value, value]"]),
        (["steps=3"], ["steps=3: must be path=[value, value], path=log(LOW,HIGH) or"]),
        (
            ["seed=[]", "steps=[1", "grpo=log(1,2)"],
            [
                "seed=[]: must be",
                "steps=[1:1:3: is not valid YAML",
                "grpo=log(1,2): is a range, of which --random",
            ],
        ),
        (["seed=[1]", "seed=[2]"], ["seed=[2]: seed has values already; give them in one list"]),
        (
            ["optimizer.learningRate=[1]", "spec.optimizer.learning_rate=[2]"],
            ["rate=[2]: optimizer.learningRate has"],
        ),
        (["optimizer=[{}]", "optimizer.learningRate=[2]"], ["Rate=[2]: optimizer has values already"]),
        (
            ["seed=log(0,1)", "steps=uniform(2,1)", "epochs=uniform(1,x)", "--random", "2"],
            [
                "seed=log(0,1): log(LOW,HIGH) must have 0 < LOW < HIGH",
                "steps=uniform",
                "must be a number; got 'x'",
            ],
        ),
        ([f"seed={[*range(1001)]}"], ["sweep: has 1001 trials; at most 1000, or draw with --random N"]),
        (
            ["optimizer.learningRate=[-1, x]", "ppo.clip=[1, 2]"],
            [
                "spec.optimizer.learningRate: must be greater",
                "must be a valid number; got 'x'",
                "value 1",
                "value 2",
            ],
        ),
        ([RATES, "--seed", "1"], ["--seed applies only to --random"]),
        ([RATES, "-n", "team"], ["--namespace, --context and --kubeconfig apply only to --mode kubernetes"]),
        ([RATES, "--mode", "kubernetes", "--max-parallel", "2"], ["apply only to --mode local"]),
    ],
)
def test_bad_expressions_are_refused_all_at_once_before_anything_starts(
    small_job, capsys, arguments, problems
):
    assert cli.main(["sweep", str(small_job), *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(problems)
    for problem in problems:
        assert any(problem in line for line in lines)
    assert not Path("runs").exists()


def test_random_trials_are_those_of_the_seed_and_more_of_them_begin_with_the_same():
    values = parse_values(["a=log(1e-6,1e-3)", "b=uniform(1,9)", "c=[x]"], ranges=True)
    drawn = draw(values, 8, seed=1)
    assert drawn[:3] == draw(values, 3, seed=1) != draw(values, 3, seed=2)
    for overrides in drawn:
        rate, whole, word = (text.partition("=")[2] for text in overrides)
        assert (1e-6 <= float(rate) <= 1e-3, 1 <= int(whole) <= 9, word) == (True, True, '"x"')
    few = parse_values(["a=[1, 2]"], ranges=True)
    assert sorted(draw(few, 5, seed=0)) == [("a=1",), ("a=2",)], "no trial twice"


def test_a_trials_name_fits_and_is_of_its_values_alone():
    names = [trial_name((f"a={value}", "b=[1, 2]"), room) for value in (1, 2) for room in (40, 12, 6)]
    assert names[0].startswith("1-1-2-")
    assert [len(name) for name in names] == [12, 12, 6] * 2
    assert len(set(names)) == 4


def test_gpus_are_divided_between_trials_that_run_at_once(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    assert divide_gpus(2) == [["0", "1"], ["2", "3"]]
    with pytest.raises(
        InvalidJob, match="--max-parallel: this machine has 5 GPUs, and each trial needs one; got 6"
    ):
        divide_gpus(6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert divide_gpus(2) == [[], []]


def test_trials_are_submitted_under_their_names(small_job):
    arguments = ["sweep", str(small_job), RATES, "--mode", "kubernetes", "-n", "team", "--set", "steps=3"]
    first, second = sweep.as_submits(cli._parser().parse_args(arguments))
    assert first == [
        *("submit", "job.yaml", "--set", "steps=3", "--set", "optimizer.learningRate=1e-05"),
        *(
            "--set",
            "checkpoint.store=s3://bucket/job-1e-5-9ec76f",
            "--trial",
            "1e-5-9ec76f",
            "--namespace",
            "team",
        ),
    ]
    assert cli._parser().parse_args(second).trial == "1e-4-316414"
