"""The log of a process: what moves to older files, and what of it is quoted."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_operator.local.processes import log as process_log
from rlhf_operator.local.processes.log import OLDER, ProcessLog

SIZE = 1000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessLog:
    monkeypatch.setattr(process_log, "FULL", SIZE)
    monkeypatch.setattr(process_log, "TAIL_BYTES", 300)
    return ProcessLog(tmp_path / "logs" / "trainer-0.log")


class Writer:
    """A process that appends to a log what it is told, through the file that it was started with."""

    def __init__(self, log: ProcessLog, title: str) -> None:
        with log.open(title) as file:
            self._process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
        self._log = log

    def write(self, numbers: range) -> None:
        assert self._process.stdin is not None
        text = "".join(f"line {number:04}\n" for number in numbers)
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()
        while not self._log.path.read_text().endswith(text):
            assert self._process.poll() is None

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def writer(log: ProcessLog) -> Iterator[Writer]:
    new_writer = Writer(log, "first")
    yield new_writer
    new_writer.close()


def whole(log: ProcessLog) -> list[str]:
    """The lines of all files, the oldest first."""
    older = [log.path.with_name(f"{log.path.name}.{number}") for number in range(OLDER, 0, -1)]
    return "".join(file.read_text() for file in (*older, log.path) if file.exists()).splitlines()


def test_what_is_too_large_moves_to_older_files_of_which_a_few_stay(log, writer):
    for first in range(0, 1000, 50):  # of 10 bytes
        writer.write(range(first, first + 50))
        log.bound()
    lines, files = whole(log), list(log.path.parent.iterdir())
    assert lines == [f"line {number:04}" for number in range(1000 - len(lines), 1000)], "none is missing"
    assert len(files) == 1 + OLDER
    assert max(file.stat().st_size for file in files) <= 2 * SIZE


def test_a_flood_between_two_looks_loses_what_is_oldest(log, writer):
    writer.write(range(500))
    log.bound()
    lines = whole(log)
    assert (len(lines), lines[-1]) == (200, "line 0499")


def test_the_tail_goes_on_into_the_older_file_as_far_as_the_start_does(log, writer):
    writer.close()
    second = Writer(log, "second")
    second.write(range(120))
    log.bound()
    assert log.path.stat().st_size == 0
    assert log.tail().splitlines() == [f"line {number:04}" for number in range(90, 120)]
    second.write(range(120, 125))
    assert log.tail().splitlines() == [f"line {number:04}" for number in range(95, 125)]
    second.close()
    third = Writer(log, "third")
    third.write(range(200, 203))
    assert log.tail().splitlines() == [f"line {number}" for number in ("0200", "0201", "0202")]
    third.write(range(300, 400))
    log.bound()
    third.close()
    assert len(log.tail().splitlines()) == 30


def test_a_start_in_the_older_file_is_quoted_from_there_and_no_earlier_one(log, writer):
    writer.write(range(98))
    writer.close()
    second = Writer(log, "second")
    second.write(range(200, 203))
    log.bound()
    second.close()
    assert log.tail().splitlines() == ["line 0200", "line 0201", "line 0202"]


def test_a_log_that_cannot_move_stays(log, writer):
    writer.write(range(120))
    (log.path.parent / "trainer-0.log.new").mkdir()
    log.bound()
    assert len(whole(log)) == 121


def test_a_log_that_somebody_has_deleted_is_no_error(log):
    log.open("first").close()
    log.path.unlink()
    log.bound()
    assert log.tail() == ""
