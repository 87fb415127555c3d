"""Output that changes: redrawn on a terminal, a line per change elsewhere."""

import io
import os
import pty

import pytest
from rich.text import Text

from rlhf_operator.verbs.terminal import LiveView, put


def test_elsewhere_each_change_is_a_line() -> None:
    out = io.StringIO()
    with LiveView(out) as shown:
        for line in ("Pending", "Pending", "Running"):
            shown.show(Text("a page"), line)
        shown.print_line("no answer")
        shown.show(Text("a page"), "Running")
    assert [line[9:] for line in out.getvalue().splitlines()] == ["Pending", "Running", "no answer"]


def test_a_terminal_is_redrawn_and_lines_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    leader, follower = pty.openpty()
    with open(follower, "w") as out:  # noqa: PTH123
        with LiveView(out) as shown:
            shown.show(Text("step 1 of [2]", "green"), "x")
            shown.print_line("no answer")
            shown.show(Text("step 2 of [2]", "green"), "x")
        put(Text("done", "bold"), out)
        screen = ""
        while "done" not in screen:
            screen += os.read(leader, 65536).decode()
    os.close(leader)
    for text in ("step 1 of [2]", "no answer", "step 2 of [2]", "\x1b[2K", "done"):
        assert text in screen
    assert screen.count("no answer") == 1
