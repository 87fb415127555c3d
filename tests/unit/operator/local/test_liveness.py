"""Liveness probes of `rlhf run`: as a kubelet does, they end a server after so many failures in a row."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlhf_api.contract.run import Process
from rlhf_api.roles import LIVE_FAILURES, Role
from rlhf_operator.local.processes import process as processes
from rlhf_operator.local.processes.process import Supervised
from rlhf_operator.supervision.role_client import ControlClient


class Over(Exception):
    """Every answer has been given."""


class Answers(ControlClient):
    """A client whose server's answers are told beforehand."""

    def __init__(self, answers: Sequence[bool]) -> None:
        self.asked, self._answers = 0, answers

    async def lives(self, url: str) -> bool:
        assert url == "http://127.0.0.1:1/live"
        if self.asked == len(self._answers):
            raise Over
        self.asked += 1
        return self._answers[self.asked - 1]


BUT_ONE = [False] * (LIVE_FAILURES - 1)


@pytest.mark.parametrize(
    ("answers", "killed"),
    [
        ([*BUT_ONE, False], [LIVE_FAILURES]),
        ([*BUT_ONE, True, *BUT_ONE, True], []),
        ([*BUT_ONE, True, *BUT_ONE, False], [2 * LIVE_FAILURES]),
    ],
)
def test_failures_in_a_row_end_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[bool], killed: list[int]
) -> None:
    server, control, ends = (
        Supervised(Process(Role.GENERATOR, 0, 1, "127.0.0.1", ""), tmp_path),
        Answers(answers),
        [],
    )
    server.uid, server.started, server.ready = "first", 0.0, True
    monkeypatch.setattr(server, "kill", lambda _reason: ends.append(control.asked))
    monkeypatch.setattr(processes, "LIVE_SECONDS", 0.0)
    with pytest.raises(Over):
        asyncio.run(processes.end_the_hung([server], control))
    assert ends == killed
