"""The last lines of `rlhf run`: what to know of the data, and how to go on."""

import datetime
import shlex
from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.contract.report import TrainerStatus
from rlhf_api.contract.status import JobStatus
from rlhf_operator import cli
from rlhf_operator.commands.conclusion import print_conclusion
from rlhf_operator.commands.run import resume_command
from rlhf_operator.status.condition import condition
from rlhf_operator.status.job_status import first_status, job_status

ROWS = "rows.jsonl: 2 of 9 rows are too long, 2 are left out (spec.data.overlong: drop)"


def ended(phase: str, reason: str = "", **fields: object) -> JobStatus:
    failed = (condition("Failed", "True", reason, "m", "2026-01-01T00:00:00Z"),) if reason else ()
    saved = {"step": 2, "time": "t", "uri": "file:///x"}
    made = {"phase": phase, "totalSteps": 3, "step": 3, "lastCheckpoint": saved, **fields}
    return JobStatus.model_validate(made).model_copy(update={"conditions": failed})


def test_rows_that_are_too_long_are_counted_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    spec = job().spec
    trainer = TrainerStatus(activity="training", total_steps=3, overlong=ROWS)
    status = job_status(
        spec, [], {}, trainer, before=first_status(spec, None), now=datetime.datetime.now(datetime.UTC)
    )
    assert status.overlong == ROWS
    print_conclusion(
        status.model_copy(update={"phase": "Succeeded"}), "", tmp_path, None, "rlhf run a.yaml --resume"
    )
    assert f"warning: {ROWS}\n" in capsys.readouterr().err


def test_trackers_that_failed_are_named_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    spec, lost = job().spec, "tracker wandb cannot be begun: UsageError: No API key; 2 lines were not sent"
    trainer = TrainerStatus(activity="done", total_steps=3, trackers_failed=(lost,))
    status = job_status(
        spec, [], {}, trainer, before=first_status(spec, None), now=datetime.datetime.now(datetime.UTC)
    )
    print_conclusion(
        status.model_copy(update={"phase": "Succeeded"}), "", tmp_path, None, "rlhf run a.yaml --resume"
    )
    assert capsys.readouterr().err == f"warning: {lost}\n"


@pytest.mark.parametrize(
    ("reason", "again"), [("InvalidConfiguration", True), ("BackoffLimitExceeded", False)]
)
def test_a_fault_of_the_job_is_to_be_mended_before_it_is_resumed(reason, again, tmp_path, capsys):
    print_conclusion(ended("Failed", reason), "trainer-0 exited", tmp_path, None, "rlhf run a.yaml --resume")
    error = capsys.readouterr().err
    assert "the newest checkpoint is of step 2; go on with `rlhf run" in error
    assert ("once this is mended: as it is, a resumed run ends here again" in error) is again


@pytest.mark.parametrize(
    "arguments",
    [
        "job.yaml",
        "my_module:job optimizer.weightDecay=0.5 --trial b --no-env --runtime r.yaml --base-port 4000",
        "'a b.yaml' --set 'data.train=[a b.jsonl]' --set spec.seed=2 --metrics-port 0 --accept-changes --resume",
    ],
)
def test_the_command_that_goes_on_is_the_one_that_began(arguments):
    began = cli._parser().parse_args(["run", *shlex.split(arguments)])
    command = resume_command(began, Path("runs/a b"))
    resumed = cli._parser().parse_args(shlex.split(command)[1:])
    changed = {"resume": True, "workdir": Path("runs/a b"), "accept_changes": False}
    assert vars(resumed) == {**vars(began), **changed}


def test_the_command_that_goes_on_has_no_secrets():
    secret = "spec.env.HF_TOKEN=hf_" + "a" * 30
    command = resume_command(cli._parser().parse_args(["run", "a.yaml", secret, "steps=3"]), Path("w"))
    assert command == "rlhf run a.yaml --set 'spec.env.HF_TOKEN=***' --set steps=3 --workdir w --resume"
