"""`rlhf data`: what a job's rows become, before anything is spent on them."""

import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.support.rlhf import heed_signals
from tests.support.tiny.models import CHATML, byte_tokenizer, chat_tokenizer
from tests.unit.api.manifests import document, job

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.spec import Spec
from rlhf_trainer.commands.inspect_data import check, main, problems_of, show
from rlhf_trainer.data.encode import Encoded
from rlhf_trainer.ops.row_check import MOST_PROBLEMS

SFT = ("spec.algorithm=sft", "spec.ppo={}", "spec.data.maxPromptLength=4", "spec.data.maxResponseLength=3")
WIDE = ("spec.data.maxPromptLength=99", "spec.data.maxResponseLength=99")
CHAT = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}] * 2}


def spec(folder: Path, rows: list[object], *overrides: str) -> Spec:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return job(*SFT, f"spec.data.train=[{folder / 'rows.jsonl'}]", *overrides).spec


def test_check_tells_lengths_and_what_is_cut(tmp_path):
    rows = [{"prompt": "p" * (i + 1), "answer": "a" * (i % 3 + 1)} for i in range(10)]
    made = spec(tmp_path, rows, "spec.data.samplesPerEpoch=4", "spec.data.overlong=cut")
    head, prompts, responses, warning = check(made, byte_tokenizer())
    assert head == f"spec.data: {tmp_path}/rows.jsonl: 10 rows, 4 of 4 samples an epoch"
    assert prompts == "  prompt tokens: shortest 1, 50% 5, 90% 9, 99% 9, longest 10; 6 of 10 longer than 4"
    assert responses == "  response tokens: shortest 2, 50% 3, 90% 4, 99% 4, longest 4; 3 of 10 longer than 3"
    assert warning == (
        f"{tmp_path}/rows.jsonl: 7 of 10 rows are too long, 7 are cut (spec.data.overlong: cut): 6 prompts beyond "
        "spec.data.maxPromptLength (4), the longest of 10 tokens, 3 responses beyond spec.data.maxResponseLength (3), "
        "the longest of 4 tokens"
    )


def test_check_says_that_an_environment_may_open_otherwise(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "p"}\n')
    made = job(f"spec.data.train=[{tmp_path / 'rows.jsonl'}]", "spec.environment={path: 'a:B'}").spec
    *_, last = check(made, byte_tokenizer())
    assert last.startswith(
        "spec.environment: the lengths are of the rows' own prompts, which its reset may replace"
    )


def test_check_names_an_interpreter_that_is_none(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "p"}\n')
    plays = "spec.environment={path: 'a:B', python: no/python}"
    with pytest.raises(
        InvalidJob, match=r"^spec\.environment\.python: is not a program here; .*'no/python'$"
    ):
        [*check(job(f"spec.data.train=[{tmp_path / 'rows.jsonl'}]", plays).spec, byte_tokenizer())]


def test_check_keeps_no_tokens_of_rows_it_has_read(tmp_path):
    """A million rows would take tens of gigabytes."""
    rows = [{"prompt": "p", "answer": "a"}] * 50
    for _line in check(spec(tmp_path, rows), byte_tokenizer()):
        assert sum(isinstance(instance, Encoded) for instance in gc.get_objects()) <= 1


def test_check_warns_of_a_template_where_there_are_conversations(tmp_path):
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% endfor %}"
    )
    short = ("spec.data.maxPromptLength=99", "spec.data.maxResponseLength=99")
    text = {"prompt": "p", "answer": "a"}
    *_, last = check(spec(tmp_path, [text, CHAT], *short), tokenizer)
    assert last.startswith("warning: the chat template does not begin the assistant's turn")
    *_, last = check(spec(tmp_path, [text, text], *short), tokenizer)
    assert last.startswith("  response tokens")


def test_check_names_all_that_is_wrong(tmp_path):
    rows = [{"prompt": "p"}, {"prompt": "p", "answer": "a"}, CHAT, *[{}] * 30]
    with pytest.raises(InvalidJob) as caught:
        list(check(spec(tmp_path, rows), byte_tokenizer()))
    problems = [str(problem) for problem in caught.value.problems]
    assert problems[0].startswith(f"{tmp_path}/rows.jsonl:1: answer: is missing")
    assert problems[1].startswith(f"{tmp_path}/rows.jsonl:3: messages: spec.data.chatTemplate: ")
    assert problems[-1] == f"{tmp_path}/rows.jsonl: {32 - MOST_PROBLEMS} more rows are invalid"
    assert len(problems) == MOST_PROBLEMS + 1


def test_problems_of_local_rows_are_those_of_the_trainers_start(tmp_path):
    chat_tokenizer().save_pretrained(tmp_path / "tokenizer")
    rows = [
        {"prompt": "p" * 5, "answer": "a"},
        {"messages": [{"role": "user", "content": "q"}], "answer": "a"},
    ]
    tokenizer, more = f"spec.model.tokenizer={tmp_path}/tokenizer", "spec.pretraining=null"
    made = spec(tmp_path, rows[:1], tokenizer, more)
    config = RunConfig(job="job", spec=made, workdir=str(tmp_path))
    (problem,), _ = problems_of(config)
    assert problem.message.startswith(
        "is too long, as 1 of 1 rows are: 1 prompt beyond spec.data.maxPromptLength (4)"
    )
    cut = spec(tmp_path, rows[:1], tokenizer, more, "spec.data.overlong=cut", "spec.data.promptsPerStep=1")
    _, (warning,) = problems_of(RunConfig(job="job", spec=cut, workdir=str(tmp_path)))
    assert "rows.jsonl: 1 of 1 rows are too long, 1 are cut (spec.data.overlong: cut)" in warning
    elsewhere = ("spec.data.train=['s3://bucket/rows.jsonl', 'module:function']", tokenizer)
    made = job(*SFT, *elsewhere).spec
    assert problems_of(RunConfig(job="job", spec=made, workdir=str(tmp_path))) == ([], [])
    lacking = json.dumps(CHATML.partition("{% if add_generation_prompt")[0])
    made = spec(
        tmp_path, [CHAT], tokenizer, *WIDE, "spec.data.promptsPerStep=1", f"spec.data.chatTemplate={lacking}"
    )
    problems, (warning,) = problems_of(RunConfig(job="job", spec=made, workdir=str(tmp_path)))
    assert problems == []
    assert warning.startswith("warning: the chat template does not begin the assistant's turn")
    made = spec(tmp_path, rows[:1] * 3, tokenizer, *WIDE, "spec.data.promptsPerStep=4")
    assert problems_of(RunConfig(job="job", spec=made, workdir=str(tmp_path))) == (
        [],
        [
            "warning: spec.data.promptsPerStep is 4, and the training data has 3 rows: a step takes some of them more "
            "than once"
        ],
    )


def test_show_says_of_each_token_whether_it_is_trained_on(tmp_path):
    made = spec(tmp_path, [CHAT], *WIDE)
    lines = list(show(made, chat_tokenizer(), 0, colour=False))
    assert lines[0] == f"row 0, {tmp_path}/rows.jsonl:1"
    assert lines[1].endswith("4 trained on")
    marked = [(line.split()[2], line.split(maxsplit=3)[3]) for line in lines[2:]]
    assert marked[0] == ("prompt", "'<|im_start|>'")
    assert [text for mark, text in marked if mark == "trained"] == ["'a'", "'<|im_end|>'"] * 2
    coloured = list(show(made, chat_tokenizer(), 0, colour=True))
    assert [line for line in coloured if "trained " in line and "\033[32m" not in line] == [lines[1]]
    with pytest.raises(InvalidJob, match="--row: must be one of the 1 rows, from 0 to 0; got 1"):
        list(show(made, chat_tokenizer(), 1, colour=False))


def test_the_command(tmp_path, forked_programs):  # noqa: ARG001
    chat_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [{"role": "user", "content": "q"}]}\n')
    manifest = document(
        f"spec.data.train=[{tmp_path}/prompts.jsonl]", f"spec.model.tokenizer={tmp_path}/tokenizer"
    )
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))

    def rlhf(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rlhf_operator.cli", "data", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    checked = rlhf("check", f"{tmp_path}/job.yaml")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "1 rows, 1 of 1 samples an epoch\n  prompt tokens: shortest 20" in checked.stdout
    shown = rlhf("show", f"{tmp_path}/job.yaml", "--row", "7")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == "error: --row: must be one of the 1 rows, from 0 to 0; got 7\n"
    assert rlhf("check", f"{tmp_path}/job.yaml", "--set", "spec.steps=0").returncode == 2


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path):
    rows = spec(tmp_path, [{"prompt": "p", "answer": "a"}], "spec.model.policy=owner/model")
    config = RunConfig(job="job", spec=rows, workdir=str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and listens to nobody
        hub = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "rlhf_trainer.commands.data", "check"],
            input=config.model_dump_json(by_alias=True),
            env={**os.environ, "HF_ENDPOINT": hub, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "Retrying" not in done.stderr
    (error,) = [line for line in done.stderr.splitlines() if "owner/model" in line]
    assert error.startswith(
        "error: spec.model.policy: cannot load 'owner/model', which is not a directory here, from the hub: "
    )
    assert "couldn't connect" in error


def test_neither_ctrl_c_nor_a_reader_that_has_enough_is_a_traceback(tmp_path, forked_programs):  # noqa: ARG001
    chat_tokenizer().save_pretrained(tmp_path / "tokenizer")
    rows = spec(tmp_path, [CHAT], f"spec.model.tokenizer={tmp_path}/tokenizer", *WIDE)
    config = RunConfig(job="job", spec=rows, workdir=str(tmp_path)).model_dump_json(by_alias=True).encode()
    command = [sys.executable, "-m", "rlhf_trainer.commands.data", "show"]
    read, write = os.pipe()
    os.close(read)  # the reader is gone
    done = subprocess.run(command, input=config, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False), done.stderr
    interrupted = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], preexec_fn=heed_signals, capture_output=True, check=False
    )
    assert (interrupted.returncode, interrupted.stderr) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(("no_colour", "codes"), [("", True), ("1", False)])
def test_a_terminal_has_colours_unless_it_is_to_have_none(tmp_path, monkeypatch, no_colour, codes):
    chat_tokenizer().save_pretrained(tmp_path / "tokenizer")
    rows = spec(tmp_path, [CHAT], f"spec.model.tokenizer={tmp_path}/tokenizer", *WIDE)
    config = RunConfig(job="job", spec=rows, workdir=str(tmp_path)).model_dump_json(by_alias=True)
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(config))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["data", "show"])
    monkeypatch.setenv("NO_COLOR", no_colour)
    assert main() == 0
    assert ("\033[" in out.getvalue()) is codes


INTERRUPTED = """
import os, signal, sys
from rlhf_trainer.commands import data as data_command
class Interrupts:
    def find_spec(self, name, *_):
        if name == "transformers":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
data_command.main()
"""
