"""Control characters in text of models, buckets, clusters and files: no command gives them to a terminal."""

import ast
import datetime
import io
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.text import Text
from tests.support.tiny.models import chat_tokenizer

from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.printing import CleanFormatter, clean, write_line
from rlhf_operator import cli
from rlhf_operator.archive.replay import trajectory
from rlhf_operator.console.exits import Failure, ended, print_line
from rlhf_operator.job.snapshot import Job
from rlhf_operator.local.display.progress import Lines
from rlhf_operator.local.display.screen import Screen
from rlhf_operator.selftest.checks import Check
from rlhf_operator.selftest.table import passed
from rlhf_operator.verbs.log_reader import Reading
from rlhf_operator.verbs.status_view import page
from rlhf_operator.verbs.terminal import LiveView, put
from rlhf_store import manifest

EVIL = "\x1b]0;T\x07\x1b]52;c;cm0=\x07\x1b[2J\x1b[8m\r\x9b2J\x08\x7f\u202e\u2028"
RAW = set(EVIL) - set("]052;cmT=[J8") - {"\x1b"}
ROOT = Path(__file__).parents[4]


def assert_clean(text: str) -> None:
    assert not RAW & set(text), repr(text)
    for part in text.split("\x1b")[1:]:
        assert part[:1] == "[", repr(part)
        assert part[1:3] not in ("2J", "8m"), repr(part)
    assert any(escape in text for escape in ("␛]0;T", "\\x1b]0;T", "\\u001b]0;T", "\\e]0;T")), repr(text)


def test_our_own_colours_stay_and_nothing_else():
    out = io.StringIO()
    write_line("\x1b[32mgreen\x1b[0m \x1b[8mhidden\x1b[0m\ta\r\nb 中文 👩‍🔬", out)
    assert out.getvalue() == "\x1b[32mgreen\x1b[0m ␛[8mhidden\x1b[0m\ta␍\nb 中文 👩‍🔬\n"
    assert clean("\x1b[32m") == "␛[32m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def status() -> JobStatus:
    condition = {
        "type": "Stalled",
        "status": "True",
        "reason": "X",
        "message": EVIL,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return JobStatus.model_validate_json(
        json.dumps(
            {
                "phase": "Running",
                "activity": EVIL,
                "message": EVIL,
                "totalSteps": 3,
                "conditions": [condition],
            }
        )
    )


def drawn(out: io.StringIO) -> None:
    now = datetime.datetime.now(datetime.UTC)
    meta = {"name": "j", "namespace": "n", "uid": "u", "creationTimestamp": now.isoformat()}
    body = {"metadata": meta, "spec": {}}
    event = {
        "metadata": meta,
        "type": EVIL,
        "reason": EVIL,
        "message": EVIL,
        "lastTimestamp": now.isoformat(),
    }
    put(page(Job.of(body), status(), [event], now), out)


def live(out: io.StringIO) -> None:
    screen = Screen(f"j{EVIL}", out)
    screen.event(f"reward-0 exited with code 1: {EVIL}")
    screen.show(status())
    screen.close()


def changing(out: io.StringIO) -> None:
    with LiveView(out) as shown:
        shown.show(Text(EVIL, "green"), EVIL)
        shown.print_line(EVIL)


def lines(out: io.StringIO) -> None:
    shown = Lines(out, 3)
    shown.event(EVIL)
    shown.show(status())


def logs(out: io.StringIO) -> None:
    for line in Reading().take(
        f"2026-01-01T00:00:00Z {EVIL}end\n2026-01-01T00:00:00Z {EVIL.replace(chr(13), '')}\n".encode()
    ):
        put(f"\x1b[36mreward-0 | \x1b[0m{line}", out)


def replayed(out: io.StringIO) -> None:
    row = dict.fromkeys(("prompt_id", "weight_version", "prompt", "response"), EVIL)
    numbers = {
        "episode": 1,
        "reward": 1.0,
        "kl": None,
        "response_tokens": [1],
        "trained": None,
        "finished": True,
    }
    print_line(trajectory({**row, **numbers}), out)


def logged(out: io.StringIO) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(CleanFormatter())
    handler.handle(logging.LogRecord("a", logging.INFO, "f", 1, "graded %s", (EVIL,), None))


@pytest.mark.parametrize(
    "output", [drawn, live, changing, lines, logs, replayed, logged], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("out", [io.StringIO, Terminal])
def test_what_others_say_is_shown_without_control_characters(output, out, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    written = out()
    output(written)
    text = written.getvalue()
    for own in ("\x1b[?25l", "\x1b[?25h", "\r\x1b[1A\x1b[2K", "\r\x1b[2K", "\x1b[1A\x1b[2K", "\x1b[2K", "\r"):
        if out is Terminal:  # a live display moves the cursor itself
            text = text.replace(own, "")
    assert_clean(text)


def raises(error: Exception) -> Any:
    def act() -> int:
        raise error

    return act


@pytest.mark.parametrize(
    "error",
    [InvalidJob([Problem(EVIL, EVIL)]), Failure(EVIL), OSError(2, EVIL)],
    ids=lambda e: type(e).__name__,
)
def test_errors(error, capsys):
    ended(raises(error))
    assert_clean(capsys.readouterr().err)


def test_checks_of_a_selftest(capsys):
    passed([Check("a", False, EVIL, EVIL)], EVIL)
    captured = capsys.readouterr()
    assert_clean(captured.out)
    assert_clean(captured.err)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    name = f"d{EVIL.replace('/', '')}.jsonl"
    Path(name).write_text(json.dumps({"prompt": "p", EVIL: 1}) + "\n")
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([EVIL])
    tokenizer.save_pretrained("tokenizer")
    spec = {
        "algorithm": "sft",
        "steps": 1,
        "model": {"policy": "a/b", "tokenizer": "./tokenizer"},
        "data": {"train": [name], "systemPrompt": EVIL},
    }
    meta = {"name": "x"}
    document = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": meta, "spec": spec}
    Path("job.yaml").write_text(json.dumps(document))
    entry = {"step": 3, "epoch": 1, "time": EVIL}
    data = manifest.encode_manifest(
        manifest.Manifest(state={}, groups={}, blobs={}, **{**entry, "time": "t"})
    )
    entry_of_data = manifest.Entry(digest=manifest.digest_of(data), **entry)
    (tmp_path / "store" / "cuts").mkdir(parents=True)
    (tmp_path / "store" / entry_of_data.key).write_bytes(data)
    (tmp_path / "store" / "LATEST").write_bytes(
        manifest.encode_root(manifest.Root(epoch=1, cuts=(entry_of_data,)))
    )
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ("validate", "job.yaml"),
        ("run", "job.yaml"),
        ("plan", f"{EVIL}.yaml"),
        ("render", "job.yaml"),
        ("graph", f"no{EVIL}"),
        ("data", "check", "job.yaml"),
        ("checkpoint", "ls", "store"),
        ("checkpoint", "verify", f"none{EVIL}"),
        ("replay", "ls", f"none{EVIL}"),
        ("clone", f"none{EVIL}", "--from-step", "1"),
        ("submit", f"{EVIL}.yaml"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.usefixtures("folder")
def test_commands(command, capfd):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        with suppress(SystemExit):  # of wrong arguments
            cli.main(list(command))
    captured = capfd.readouterr()
    assert_clean(captured.out + captured.err)


def test_a_document_that_is_printed_reads_back_as_it_was(folder, capsys):
    assert cli.main(["render", "job.yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == json.loads((folder / "job.yaml").read_text())


PRINTS = {
    "operator/rlhf_api/host/printing.py",
    "operator/rlhf_operator/console/terminal.py",
    "operator/rlhf_api/host/reaper.py",  # of the standard library alone; in our own words
}
STREAMS = {"sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines"}
ELSEWHERE = {"print", "Console", "logging.StreamHandler", *STREAMS}
HANDLERS = {"operator/rlhf_operator/cluster/serve/logs.py", "trainer_image/rlhf_trainer/process/role.py"}
"""Log handlers, whose formatters clean; see `logged` above, and tests/unit/operator/cluster/serve/test_logs.py."""


def test_nothing_else_prints():
    calls = []
    for file in sorted([*ROOT.glob("operator/**/*.py"), *ROOT.glob("trainer_image/**/*.py")]):
        name = file.relative_to(ROOT).as_posix()
        if name in PRINTS:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ELSEWHERE and not (called == "logging.StreamHandler" and name in HANDLERS):
                calls.append(f"{name}: {called}")
    assert not calls, "print through rlhf_api.host.printing"
