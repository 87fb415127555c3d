"""The end of a role's process: its exit code, one termination message, and no wait for its threads."""

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.forked.forks import ended, fork, torchrun
from tests.support.tiny.models import small_llama

from rlhf_api.contract.run import EXIT_INVALID, EXIT_SUSPENDED
from rlhf_api.roles import Role
from rlhf_api.sections.lora import Lora
from rlhf_trainer.process import termination
from rlhf_trainer.process.role import run_role
from rlhf_trainer.roles import trainer

ROLE = """
import sys, threading
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.contract.run import EXIT_SUSPENDED
from rlhf_trainer.process.role import run_role

def role(env):
    assert env.config.job == "job"
    threading.Thread(target=threading.Event().wait).start()  # asks another role, for ever
    {body}

run_role(role)
"""


def run(tmp_path: Path, body: str, **changes: str | None) -> tuple[subprocess.CompletedProcess, Path]:
    given, end = environ(tmp_path), tmp_path / "role.end"
    named = os.environ | {name: value for name, value in (given | changes).items() if value is not None}
    command = [sys.executable, "-c", ROLE.format(body=body)]
    return subprocess.run(command, env=named, capture_output=True, text=True, timeout=300, check=False), end


def environ(tmp_path: Path, **trainer: int) -> dict[str, str]:
    """The environment of a role's process, whose job has this section of the trainer."""
    spec = {"algorithm": "sft", "steps": 1, "model": {"policy": "x"}, "data": {"train": ["y"]}}
    config = {"job": "job", "spec": {**spec, "trainer": trainer}, "workdir": str(tmp_path)}
    (tmp_path / "run.json").write_text(json.dumps(config))
    return {
        "RLHF_RUN_CONFIG": str(tmp_path / "run.json"),
        "RLHF_INDEX": "0",
        "RLHF_HOST": "127.0.0.1",
        "RLHF_PORT": "1",
        "RLHF_TOKEN": "token",
        "RLHF_TERMINATION_LOG": str(tmp_path / "role.end"),
    }


MODULES = ("torchrun", "model_cache", *(f"roles.{role.value}" for role in Role if role is not Role.SANDBOX))
"""Modules that pods run by name, those of a job that began under another release included. A sandbox has a file of
ours, and no module."""


@pytest.mark.parametrize("name", MODULES)
def test_pods_find_the_modules_of_every_release(name):
    module = find_spec(f"rlhf_trainer.{name}")
    assert module is not None
    assert '__name__ == "__main__"' in Path(module.origin).read_text()


@pytest.mark.parametrize(
    ("body", "code"),
    [("return None", 0), ("return 0", 0), ("return EXIT_SUSPENDED", EXIT_SUSPENDED)],
)
def test_a_role_that_returns(tmp_path, body, code):
    ended, end = run(tmp_path, body)
    assert (ended.returncode, end.exists()) == (code, False), ended.stderr


def test_garbage_is_collected_once_all_is_imported(tmp_path):
    body = """
    import gc, rlhf_trainer
    assert gc.isenabled() and gc.get_freeze_count()
    sys.argv[0] = "-m"
    import rlhf_trainer.roles
    assert not gc.isenabled()
    """
    ended, _ = run(tmp_path, body)
    assert ended.returncode == 0, ended.stderr


def test_the_jobs_own_mistake(tmp_path):
    ended, end = run(tmp_path, "raise InvalidJob([Problem('spec.a', 'is wrong'), Problem('spec.b', 'too')])")
    assert ended.returncode == EXIT_INVALID
    assert end.read_text() == "spec.a: is wrong spec.b: too\n"
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("file:///mnt/store", "spec.checkpoint.store"),
        (None, "spec.checkpoint.store, which is not given and so in the work directory"),
    ],
)
def test_a_store_that_cannot_be_used_is_told_with_whether_the_manifest_names_it(tmp_path, given, where):
    started, body = (
        environ(tmp_path),
        "from rlhf_store.errors import UnusableStore; raise UnusableStore('no')",
    )
    config = json.loads((tmp_path / "run.json").read_text())
    config["spec"]["checkpoint"] = {"store": given}
    (tmp_path / "given.json").write_text(json.dumps(config))
    ended, end = run(tmp_path, body, **started | {"RLHF_RUN_CONFIG": str(tmp_path / "given.json")})
    assert (ended.returncode, end.read_text()) == (EXIT_INVALID, f"{where}: no\n")


def test_any_other_error_with_where_it_happened_in_the_log(tmp_path):
    ended, end = run(tmp_path, "raise RuntimeError('no\\nluck')")
    assert ended.returncode == 1
    trace, cause, rest = end.read_text().rpartition("RuntimeError: no luck\n")
    assert (cause, rest) == ("RuntimeError: no luck\n", "")
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "Traceback" in ended.stderr


def test_of_a_long_traceback_the_end_is_left_as_much_as_a_kubelet_keeps(tmp_path):
    deep = """
    def down(n):
        if n == 0:
            raise RuntimeError("the bottom")
        (lambda: down(n - 1))()
    down(100)
    """
    _, end = run(tmp_path, deep)
    left = end.read_bytes()
    assert 3900 < len(left) <= 4096
    assert left.startswith(b"  File "), "whole lines"
    assert left.endswith(b"RuntimeError: the bottom\nRuntimeError: the bottom\n")


def test_the_first_message_stands(tmp_path):
    """Several ranks write to one file, and those that follow only say that the first is gone."""
    (tmp_path / "role.end").write_text("out of memory\n")
    _, end = run(tmp_path, "raise RuntimeError('connection closed by peer')")
    assert end.read_text() == "out of memory\n"


def test_a_message_that_cannot_be_left_changes_no_exit_code(tmp_path):
    nowhere = str(tmp_path / "missing" / "role.end")
    ended, _ = run(
        tmp_path, "raise InvalidJob([Problem('spec.a', 'is wrong')])", RLHF_TERMINATION_LOG=nowhere
    )
    assert ended.returncode == EXIT_INVALID
    assert "spec.a: is wrong" in ended.stderr


def test_a_role_that_nobody_started(tmp_path):
    ended, _ = run(tmp_path, "return 0", RLHF_RUN_CONFIG=None)
    assert ended.returncode == 1
    assert "'RLHF_RUN_CONFIG' is not set: roles are started by `rlhf run` or by the operator" in ended.stderr


@pytest.mark.parametrize(("ranks", "world"), [(2, 1), (1, 2), (4, 2)])
def test_a_trainer_with_other_ranks_than_the_manifest_says_does_not_train(tmp_path, ranks, world):
    """As where a controller sets WORLD_SIZE, or torchrun is started with another job's numbers."""
    log = tmp_path / "log"
    gang = [
        fork(start_trainer, log=log, **environ(tmp_path, processesPerReplica=ranks), **rank)
        for rank in torchrun(world)
    ]
    assert EXIT_INVALID in ended(gang, 120, log), log.read_text()
    message = (tmp_path / "role.end").read_text()
    assert message.startswith(
        f"spec.trainer: has {ranks} ranks (replicas 1 x processesPerReplica {ranks}), and "
    )
    assert f"WORLD_SIZE of this process is {world};" in message


def start_trainer() -> None:
    run_role(trainer.run)


def test_libraries_bring_no_others_which_a_job_may_still_import(tmp_path):
    log = tmp_path / "log"
    assert ended([fork(import_optional, log=log)], 120, log) == [0], log.read_text()


def import_optional() -> None:
    """In a process that has imported all roles."""
    assert "deepspeed" in sys.modules
    adapter = importlib.import_module("rlhf_trainer.models.adapter")
    adapter.Adapter(small_llama(), Lora(rank=2), 0, "base")  # PEFT imports some when it makes one
    for optional in ("mlflow", "bitsandbytes"):
        assert optional not in sys.modules
        importlib.import_module(optional)


def test_a_termination_message_has_no_values_of_the_roles_secrets(tmp_path, monkeypatch):
    """Also one of no known form, and where it is quoted in a traceback above, whose lines are whole."""
    monkeypatch.setenv("GRADER_PASSWORD", "plain words 1")
    file = tmp_path / "end"
    try:
        raise ValueError("refused: plain words 1 " + "x" * 500 + "\n" + "y" * 3000)
    except ValueError as error:
        termination.write(f"ValueError: {error}", str(file), error=error)
    text = file.read_text()
    assert "plain words" not in text
    assert text.splitlines()[-1].startswith("ValueError: refused: *** ")
    assert len(text.encode()) <= 4096
