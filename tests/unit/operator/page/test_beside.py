"""The page beside `rlhf run`: it serves while the run lasts, ends with it however it ends, and never fails it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml
from tests.support.run_folders import write_run
from tests.unit.api.manifests import document

from rlhf_operator.page.serve import beside
from rlhf_operator.page.serve.static_files import Asset

LAUNCH = Path(__file__).parents[1] / "local" / "launch.py"
DEADLINE_SECONDS = 120
PARENT = """
import sys, time
from pathlib import Path
from rlhf_operator.page.serve import beside
beside.find_assets = lambda: {"/": None}
with beside.page_beside(Path(sys.argv[1]), lambda line: print(line, flush=True)):
    time.sleep(600)
"""


def read_runs(line: str) -> list[dict]:
    """The runs that the page of an address lists; its process may take seconds until it answers."""
    origin, token = re.search(r"page on (http://\S+)/#token=(\S+)", line).groups()
    request = urllib.request.Request(f"{origin}/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as reply:
        return json.load(reply)["runs"]


def pages(place: Path) -> list[psutil.Process]:
    """The page's processes for a place."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if {"rlhf_operator.page.serve.beside", str(place)} <= set(process.info["cmdline"] or ())
    ]


def wait_until_none(place: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while pages(place):
        assert time.monotonic() < deadline, "the page outlives its run"
        time.sleep(0.05)


@pytest.fixture
def built(monkeypatch):
    monkeypatch.setattr(beside, "find_assets", lambda: {"/": Asset(LAUNCH, "text/plain")})


@pytest.mark.usefixtures("built")
def test_it_serves_at_the_lowest_priority_until_the_run_ends(tmp_path):
    write_run(tmp_path / "a", name="mine")
    lines = []
    with beside.page_beside(tmp_path, lines.append):
        assert [run["name"] for run in read_runs(lines[0])] == ["mine"]
        (process,) = pages(tmp_path)
        assert process.nice() == 19
        assert not any(lines[0].partition("token=")[2] in word for word in process.cmdline())
    assert pages(tmp_path) == []
    assert len(lines) == 1


@pytest.mark.usefixtures("built")
def test_a_page_that_cannot_start_is_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    lines, is_run = [], False
    with beside.page_beside(tmp_path, lines.append):
        is_run = True
    assert is_run
    assert len(lines) == 1
    assert re.match(r"the page could not be started: .*; the run goes on without it", lines[0])


def test_a_page_that_was_not_built_is_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "find_assets", dict)
    with beside.page_beside(tmp_path, pytest.fail):
        assert pages(tmp_path) == []


def test_it_ends_with_a_run_that_is_killed(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert read_runs(parent.stdout.readline()) == []
        parent.kill()
    wait_until_none(tmp_path)


def run_in_terminal(folder: Path, *arguments: str, trainer: str = "serve") -> tuple[int, str, list[dict]]:
    """Exit code and output of a run of stand-in roles in a terminal, and what its page listed meanwhile, after which it
    is stopped."""
    (folder / "p.jsonl").write_text('{"prompt": "hi"}\n')
    made = document("spec.data.train[0]=p.jsonl", "spec.reward.functions=[]", "spec.steps=2")
    (folder / "job.yaml").write_text(yaml.safe_dump(made))
    leader, follower = pty.openpty()
    environ = {**os.environ, "RLHF_TEST_PAGE": "1", "TERM": "dumb", "FAKE_TRAINER": trainer}
    command = [sys.executable, str(LAUNCH), "run", "job.yaml", "--workdir", "w", *arguments]
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=follower, stderr=follower) as process:
        os.close(follower)
        output, listed = "", []
        while True:
            try:
                output += os.read(leader, 65536).decode(errors="replace")
            except OSError:  # Linux's end of a terminal
                break
            if not listed and re.search(r"page on \S+\s", output):
                listed = read_runs(output) or [{}]
                process.send_signal(signal.SIGINT)
    os.close(leader)
    return process.returncode, output, listed


def test_a_run_in_a_terminal_prints_the_address_of_its_page(tmp_path):
    code, output, listed = run_in_terminal(tmp_path, trainer="hold")
    assert (code, output.count("page on http://127.0.0.1:"), len(listed)) == (130, 1, 1), output
    wait_until_none(Path("w"))


def test_a_run_without_a_page_prints_none(tmp_path):
    code, output, _ = run_in_terminal(tmp_path, "--no-ui")
    assert (code, "page on" in output) == (0, False), output
