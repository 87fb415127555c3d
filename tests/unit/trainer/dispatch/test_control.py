"""The control API over real HTTP: who may ask, and what reaches the training loop."""

import json
import threading
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.ports import free_port

from rlhf_api.contract.proof import Prover
from rlhf_api.roles import LIVE_SECONDS, Role
from rlhf_trainer.dispatch.control import Control
from rlhf_trainer.process import progress
from rlhf_trainer.transport.http import HttpClient

TOKEN = "token-of-tests"
MEMBERS = {
    "members": [
        {"role": "reward", "name": "reward-0", "uid": "a", "address": "http://127.0.0.1:1"},
        {"role": "reward", "name": "reward-1", "uid": "b", "address": "http://127.0.0.1:2", "draining": True},
        {"role": "reference", "name": "reference-0", "uid": "c", "address": "http://127.0.0.1:3"},
    ]
}


@pytest.fixture
def served():
    """A control API and its address."""
    control, port = Control(total_steps=9), free_port()
    with HttpClient(TOKEN) as http:
        runner = http.run(control.serve("127.0.0.1", Prover(TOKEN, "127.0.0.1", port)))
        yield control, f"http://127.0.0.1:{port}"
        http.run(runner.cleanup())


def ask(
    url: str, method: str = "GET", body: bytes | None = None, token: str | bytes = TOKEN
) -> tuple[int, str]:
    given = token if isinstance(token, str) else token.decode("latin-1")
    headers = {"Authorization": f"Bearer {given}"} if token else {}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/status"),
        ("PUT", "/v1/members"),
        ("POST", "/v1/stop"),
        ("POST", "/v1/checkpoint"),
        ("GET", "/nothing/here"),
    ],
)
@pytest.mark.parametrize("token", ["", "wrong", b"\xff\xfe"])
def test_everything_needs_the_token(served, method, path, token):
    control, address = served
    body = json.dumps(MEMBERS).encode() if method == "PUT" else None
    assert ask(address + path, method, body, token)[0] == 401
    assert control.members(Role.REWARD) == []
    assert not control.stop_requested.is_set()
    assert not control.checkpoint_requested.is_set()


def test_but_for_the_health_check(served):
    assert ask(served[1] + "/health", token="")[0] == 200


def test_who_asks_for_progress_needs_no_token_and_makes_none(served, monkeypatch):
    control, address = served
    control.report(activity="training")
    assert ask(address + "/progress", token="")[0] == 200
    monkeypatch.setattr(progress, "_last", progress._last - 2 * LIVE_SECONDS)
    assert [ask(address + "/progress", token="")[0] for _ in range(2)] == [503, 503]
    progress.sign()
    assert ask(address + "/progress", token="")[0] == 200


def test_the_status_is_the_last_report(served):
    control, address = served
    assert json.loads(ask(address + "/v1/status")[1])["activity"] == "starting"
    control.report(activity="training", step=3, reward_mean=1.5)
    status = json.loads(ask(address + "/v1/status")[1])
    assert (status["activity"], status["step"], status["totalSteps"]) == ("training", 3, 9)
    assert status["rewardMean"] == 1.5
    assert status["lastCheckpoint"] is None


def test_the_status_counts_signs_of_progress_and_not_who_asks(served):
    control, address = served

    def count() -> int:
        return json.loads(ask(address + "/v1/status")[1])["progressCount"]

    before = count()
    assert count() == before
    progress.sign()
    control.report(activity="training")
    assert count() == before + 2


def test_files_that_a_library_writes_are_signs_for_as_long_as_they_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "GROWTH_SECONDS", 0.01)
    measurements, size = threading.Semaphore(0), progress._size

    def record_size(folder: Path) -> tuple[int, int]:
        measurements.release()
        return size(folder)

    def signs() -> int:
        """Their count once the thread has made three more looks: the second began after this call and is counted."""
        while measurements.acquire(blocking=False):
            pass
        assert all(measurements.acquire(timeout=120) for _ in range(3))
        return progress.count()

    monkeypatch.setattr(progress, "_size", record_size)
    counted = [progress.count()]
    with progress.growing(tmp_path), (tmp_path / "model").open("wb", buffering=0) as file:
        counted.append(signs())
        for _ in range(2):
            file.write(b"0" * 10000)
            counted.append(signs())
        counted.append(signs())
    assert [b > a for a, b in pairwise(counted)] == [False, True, True, False]


def test_members_reach_the_loop_but_for_those_that_leave(served):
    control, address = served
    status, answer = ask(address + "/v1/members", "PUT", json.dumps(MEMBERS).encode())
    assert (status, json.loads(answer)) == (200, {"members": 3})
    assert control.membership_changed.is_set()
    assert [m.name for m in control.members(Role.REWARD)] == ["reward-0"]
    assert [m.address for m in control.members(Role.REFERENCE)] == ["http://127.0.0.1:3"]
    assert control.members(Role.GENERATOR) == []
    ask(address + "/v1/members", "PUT", b'{"members": []}')
    assert control.members(Role.REWARD) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"\xff\xfe\x00",
        b"[]",
        b'{"members": 3}',
        b'{"members": [{"role": "cook", "name": "x", "uid": "y", "address": "z"}]}',
    ],
)
def test_a_bad_membership_is_refused_and_changes_nothing(served, body):
    control, address = served
    ask(address + "/v1/members", "PUT", json.dumps(MEMBERS).encode())
    assert ask(address + "/v1/members", "PUT", body)[0] == 400
    assert len(control.members(Role.REWARD)) == 1


def test_wishes_reach_the_loop(served):
    control, address = served
    assert ask(address + "/v1/checkpoint", "POST") == (200, '{"checkpointing": true}')
    assert control.checkpoint_requested.is_set()
    assert not control.stop_requested.is_set()
    assert ask(address + "/v1/stop", "POST") == (200, '{"stopping": true}')
    assert control.stop_requested.is_set()
    assert ask(address + "/v1/stop")[0] == 405
