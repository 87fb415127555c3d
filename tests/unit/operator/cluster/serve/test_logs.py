"""The operator's log as text: what a pod says in it cannot look like a line of the operator's own."""

import logging
import sys
from collections.abc import Iterator

import pytest

from rlhf_operator.cluster.serve import logs

pytestmark = pytest.mark.usefixtures("log_as_it_was")
FORGED = "2026-01-01T00:00:00.000+00:00 INFO [kube-system/other] deleted"


@pytest.fixture
def log_as_it_was() -> Iterator[None]:
    made = logging.getLogger()
    before, level = made.handlers[:], made.level
    yield
    made.handlers[:] = before
    made.setLevel(level)
    logging.captureWarnings(False)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\x1b[2K\x1b[1G"])
def test_a_message_of_several_lines_begins_no_line(capsys, end):
    logs.set_up("text")
    with logs.about(("team", "job")):
        logging.getLogger("x").info("%s: %s", "PodFailed", f"killed{end}{FORGED}")
    first, *more = capsys.readouterr().err.splitlines()
    assert " INFO [team/job] PodFailed: killed" in first
    assert "\x1b" not in first
    assert not [line for line in more if not line.startswith("    ")]


def test_a_traceback_is_whole(capsys):
    logs.set_up("text")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("x").critical("ends", exc_info=sys.exc_info())
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "    Traceback (most recent call last):"
    assert lines[-1] == "    ValueError: why"
