"""The process that runs a reward function: its results and failures of a call."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_trainer.scoring.worker import call

ROWS = [{"answer": "5"}, {"answer": "\ud83d"}]


def test_a_function_may_empty_the_lists_that_it_gets() -> None:
    def popping(prompts: list[str], responses: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
        prompts.clear()
        return [float(responses.pop(0) == rows.pop(0)["answer"]) for _ in range(len(responses))]

    assert call(popping, ["p", "p"], ["5", "6"], ROWS, None) == {"scores": [1.0, 0.0]}

    def of_tokens(
        _prompts: Sequence[str], responses: Sequence[str], _rows: Sequence[object], tokens: list[list[str]]
    ) -> list[list[float]]:
        return [[1.0 for _ in range(len(tokens[i])) if tokens[i].pop()] for i in range(len(responses))]

    reply = call(of_tokens, ["p"], ["ab"], ROWS[:1], [["a", "b"]])
    assert reply == {"scores": [[1.0, 1.0]]}


def test_an_error_that_quotes_half_of_a_surrogate_pair_can_be_told() -> None:
    """A row's other fields may hold one, from JSON that was cut."""

    def quoting(_prompts: object, _responses: object, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        raise ValueError(f"no number: {rows[1]['answer']}")

    message = call(quoting, ["p", "p"], ["5", "6"], ROWS, None)["invalid"]
    assert r"ValueError: no number: \ud83d (" in message
    assert message.encode()
