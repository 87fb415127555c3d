"""The ready-made environment `openenv`, with a server of the OpenEnv package."""

import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port
from tests.support.processes import processes
from tests.unit.trainer.environments.test_ready_made import episodes

START_S = 120.0


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a server with places for two episodes."""
    pytest.importorskip("openenv")
    port = free_port()
    with processes(tmp_path) as made:
        made.launch(
            "server", [sys.executable, "-m", "tests.unit.trainer.environments.openenv_app", str(port)]
        )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            made.check()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"


def play(url: str, *given: Any, **settings: Any) -> list[list[Any]]:
    return episodes("openenv", *given, url=url, **settings)


def test_episodes_are_sessions_of_the_server_with_the_rows_seed(url: str) -> None:
    given = [({"seed": seed}, ["1"] * 12) for seed in (3, 4)]
    first, second = play(url, *given)
    for made in (first, second):
        target = int(made[0].removeprefix("Make ").removesuffix("."))
        assert [reward for _, reward, _ in made[1:]] == [-0.5] * (target - 1) + [1.0]
        assert [text for text, *_ in made[1:-1]] == [str(number) for number in range(1, target)]
        assert made[-1] == ("", 1.0, True)
    assert play(url, *given) == [first, second]


def test_settings_are_arguments_of_the_environments_reset(url: str) -> None:
    (made,) = play(url, ({"seed": 3}, []), most=1)
    assert made == ["Make 1."]


def test_an_action_that_the_server_refuses_costs_a_turn(url: str) -> None:
    ((_, words, fraction),) = play(url, ({"seed": 3}, ["one", "0.5"]))
    assert words[0].startswith("Invalid action: Input should be a valid integer")
    assert fraction[0].startswith("Invalid action: Input should be a valid integer, got a number with")
    assert (words[1:], fraction[1:]) == ((0.0, False), (0.0, False))


def test_a_field_may_be_named_and_must_be_one_of_the_actions(url: str) -> None:
    ((_, note),) = play(url, ({"seed": 3}, ["x"]), action="note")
    assert note[0] == "Invalid action: Field required"
    ((error,),) = play(url, ({"seed": 3}, []), action="message")
    assert "has the fields number, note: set action to one of them; got 'message'" in error
    ((error,),) = play(url, ({"seed": 3}, []), observation="sum")
    assert "the observation has no 'sum'; it has text" in error


@pytest.mark.parametrize(
    ("turn", "reason"),
    [("-2", "the server's step failed: 'broken'"), ("-1", "closed the session of an episode")],
)
def test_what_fails_at_the_server_ends_the_episode_with_the_reason(url: str, turn: str, reason: str) -> None:
    ((_, made),) = play(url, ({"seed": 3}, [turn]))
    assert made[:2] == ("", None)
    assert made[2].endswith(reason)


def test_a_server_that_is_full_or_not_there_says_so(url: str) -> None:
    *_, full = sorted(made[0] for made in play(url, *[({"seed": 3}, [])] * 3))
    assert full.startswith("reset raised ConnectionError: Server at capacity: 2/2 sessions active.")
    port = free_port()
    ((missing,),) = play(f"http://127.0.0.1:{port}", ({"seed": 3}, []))
    assert missing.startswith(f"reset raised ConnectionError: http://127.0.0.1:{port}: Cannot connect")
