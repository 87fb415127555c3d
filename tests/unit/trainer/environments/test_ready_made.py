"""Ready-made environments, with the libraries whose tasks and games they are."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.field_types import READY_MADE
from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments.ready.row_seed import seed_of
from rlhf_trainer.environments.turn_text import TurnText
from rlhf_trainer.environments.workers.pool import Worker, WorkerPool

LONG = 120.0
HASHED = ["isomorphic_strings", "polynomial_multiplication"]
"""Tasks whose questions are by the order of sets of texts."""


async def play(worker: Worker, episode: int, row: dict[str, Any], turns: Sequence[str]) -> list[Any]:
    """The opening's text, and then the reply, reward and end of each turn until the last one; or the error."""
    opened = await worker.call({"do": "reset", "episode": episode, "row": row}, LONG)
    made: list[Any] = [next(opened[key] for key in ("text", "error", "failed") if key in opened)]
    for text in turns:
        reply = await worker.call({"do": "step", "episode": episode, **TurnText(text, text)._asdict()}, LONG)
        messages = reply.get("messages") or [{"content": ""}]
        made.append(
            (
                messages[0]["content"],
                reply.get("reward"),
                reply.get("done", reply.get("error", reply.get("failed"))),
            )
        )
        if made[-1][2]:
            break
    return made


def episodes(
    name: str, *given: tuple[dict[str, Any], Sequence[str]], workers: int = 1, **settings: Any
) -> list[list[Any]]:
    """Episodes with these rows and turns, those of one worker at the same time; the same ones in each worker."""

    async def run() -> list[list[Any]]:
        section = Environment(
            path=READY_MADE[name], settings=settings, workers=workers, network=name == "openenv"
        )
        pool = WorkerPool(section)
        try:
            await pool.start()
            made = list[list[Any]]()
            for _ in range(workers):
                worker = await pool.free()
                worker.episodes += 1
                each = (play(worker, number, *one) for number, one in enumerate(given))
                made += await asyncio.gather(*each)
            return made
        finally:
            await pool.close()

    return asyncio.run(run())


def test_the_seed_is_the_rows_own_or_made_of_its_columns() -> None:
    assert seed_of({"prompt": "a", "seed": 7}) == seed_of({"prompt": "b", "seed": 7}) == 7
    first, same, other = ({"prompt": "a", "x": 1}, {"x": 1, "prompt": "a"}, {"prompt": "a", "x": 2})
    assert seed_of(first) == seed_of(same) != seed_of(other)
    for wrong in (-1, 2**31, 1.5, "7", True):
        with pytest.raises(ValueError, match="column seed must be a whole number from 0 to 2147483647; got"):
            seed_of({"seed": wrong})


@pytest.mark.parametrize(("name", "module"), [("textarena", "textarena"), ("reasoning-gym", "reasoning_gym")])
def test_a_library_that_is_missing_is_one_error_with_its_remedy(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InvalidJob, match=rf"is missing; run `pip install {name}` \(no such thing\)"):
        episodes(name)


class TestTextArena:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("textarena")

    def test_a_game_opens_with_its_prompt_and_replies_with_what_it_says(self) -> None:
        (made,) = episodes("textarena", ({"seed": 4}, ["[20]", "so [1]"]), game="GuessTheNumber-v0")
        opening, *replies = made
        assert opening.startswith("You are Player 0. You are playing Guess The Number.\n")
        assert replies == [
            ("The target number is lower.", 0.0, False),
            ("The target number is higher.", 0.0, False),
        ]

    def test_the_reward_is_the_games_own_at_its_end(self) -> None:
        guesses = [(({"seed": 4}), [f"{number}"]) for number in range(1, 21)]
        ends = [made[-1] for made in episodes("textarena", *guesses, game="GuessTheNumber-v0")]
        assert ends.count(("", 1.0, True)) == 1, "a number without brackets is an action too"
        assert sum(done for _, _, done in ends) == 1

    def test_a_second_invalid_move_ends_the_game(self) -> None:
        (made,) = episodes("textarena", ({"seed": 4}, ["[99]", "[99]"]), game="GuessTheNumber-v0")
        assert made[1][0].startswith("You attempted an invalid move. Reason: Invalid move. Player 0 guessed")
        assert made[2] == ("", 0.0, True)

    def test_games_that_exchange_reward_and_reason_give_the_reward(self) -> None:
        (made,) = episodes("textarena", ({"seed": 4}, ["?", "?"]), game="ThreeCardMonte-v0")
        assert made[2] == ("", 0.0, True)

    def test_settings_are_the_games_own(self) -> None:
        (made,) = episodes("textarena", ({}, []), game="GuessTheNumber-v0", max_number=7)
        assert "between 1 and 7" in made[0]

    @pytest.mark.parametrize(
        ("game", "message"),
        [("TicTacToe-v0", "only games for a single player"), ("Ches-v0", "Ches-v0 not found in registry")],
    )
    def test_a_game_that_cannot_be_played_says_why(self, game: str, message: str) -> None:
        (made,) = episodes("textarena", ({"seed": 4}, []), game=game)
        assert message in made[0]

    @pytest.mark.parametrize(
        ("game", "turns"),
        [
            ("2048-v0", ["[up]", "[left]", "[down]", "[right]"] * 4),
            ("Minesweeper-v0-small", ["[1 1]", "[3 3]", "[0 0]"]),
        ],
    )
    def test_a_row_is_the_same_game_beside_others_and_in_another_process(
        self, game: str, turns: list[str]
    ) -> None:
        """Games draw random numbers of the process when they are played."""
        given = [({"seed": seed}, turns) for seed in (1, 2, 1)]
        one, other, again, *elsewhere = episodes("textarena", *given, workers=2, game=game)
        assert one == again
        assert [one, other, again] == elsewhere
        (alone,) = episodes("textarena", given[0], game=game)
        assert alone == one != other


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("reasoning_gym")

    def test_an_answer_is_judged_by_the_tasks_own_score(self) -> None:
        row, settings = {"seed": 3}, {"task": "basic_arithmetic", "min_terms": 2, "max_terms": 2}
        tasks = pytest.importorskip("reasoning_gym").create_dataset(
            "basic_arithmetic", min_terms=2, max_terms=2, seed=3, size=1
        )
        answer = tasks[0]["answer"]
        turns = [answer, f"so <answer> {answer} </answer>", f"it is {answer}", "none"]
        opened = episodes("reasoning-gym", *((row, [turn]) for turn in turns), **settings)
        assert {made[0] for made in opened} == {tasks[0]["question"]}
        exact, tagged, among_words, wrong = (made[1][1] for made in opened)
        assert exact == tagged == 1.0 > among_words > wrong == 0.0
        assert all(made[1][2] for made in opened)

    def test_of_several_tries_the_best_counts_once(self) -> None:
        row, task = {"seed": 3}, "basic_arithmetic"
        answer = pytest.importorskip("reasoning_gym").create_dataset(task, seed=3, size=1)[0]["answer"]
        near = f"it is {answer}"
        (first, worse, last), (_, solved) = (
            made[1:]
            for made in episodes(
                "reasoning-gym", (row, [near, "x", near]), (row, [near, answer]), task=task, tries=3
            )
        )
        assert first[0] == worse[0] == "That is not the answer. Try again."
        assert 0.0 < first[1] < 1.0
        assert (worse[1:], last[1:]) == ((0.0, False), (0.0, True))
        assert solved[2]
        assert first[1] + solved[1] == pytest.approx(1.0)

    def test_an_answer_that_the_task_cannot_read_is_wrong(self) -> None:
        (made,) = episodes("reasoning-gym", ({"seed": 3}, ["none"]), task="prime_factorization")
        assert made[1] == ("", 0.0, True)

    def test_a_task_that_is_none_says_so(self) -> None:
        (made,) = episodes("reasoning-gym", ({"seed": 3}, []), task="basic_arithmetics")
        assert "Dataset 'basic_arithmetics' not registered" in made[0]

    @pytest.mark.parametrize("task", HASHED)
    def test_a_row_is_the_same_task_in_another_process(self, task: str) -> None:
        given = [({"prompt": json.dumps(i)}, ["x"]) for i in range(4)]
        made = episodes("reasoning-gym", *given, workers=2, task=task)
        assert made[:4] == made[4:]
        assert len({each[0] for each in made}) > 1
