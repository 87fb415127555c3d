"""Tasksets of verifiers, in an interpreter that has it: what was sampled stays, and its rubric is the reward."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny.models import chat_tokenizer
from tests.unit.trainer.rollout import test_turns as turns
from tests.unit.trainer.rollout.test_turns import Scripted, text

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.field_types import READY_MADE
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Outcome

PYTHON = Path(__file__).parents[4] / ".venv-verifiers" / "bin" / "python"
installed = pytest.mark.skipif(
    not PYTHON.is_file(), reason="`make .venv-verifiers` makes the virtual environment of verifiers"
)


@pytest.fixture(autouse=True)
def _tasksets(monkeypatch: pytest.MonkeyPatch) -> None:
    """verifiers imports a taskset by the name of a module, here of a file beside this one."""
    monkeypatch.chdir(Path(__file__).parent)


def play(
    engine: Scripted, taskset: str, *, python: str = str(PYTHON), **fields: Any
) -> tuple[PartialRollout, list[Outcome]]:
    settings = {"taskset": {"id": taskset}, **fields.pop("settings", {})}
    given = {"path": READY_MADE["verifiers"], "python": python, "settings": settings, "row": {"seed": 5}}
    work, _ = turns.play(engine, **{**given, **fields})
    return work, [response.outcome for response in work.responses if response.outcome]


@installed
def test_a_task_is_judged_by_its_own_rubric() -> None:
    work, (right, wrong) = play(Scripted(["6"], ["7"]), "verifiers_sums", responses=2, row={"seed": 14})
    assert text(work) == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n5 + 1 = ?<|im_end|>\n"
        "<|im_start|>assistant\n6<|im_end|>"
    ), "of nine tasks, counted over again"
    assert (right.problem, right.reward) == ("", 2.0), "with the weight of its function"
    assert (wrong.problem, wrong.reward) == ("", 0.0)


@installed
def test_the_turns_of_an_environment_of_its_own_stay_as_they_were_sampled() -> None:
    engine = Scripted([" 3", "9 ", "5"])
    work, (outcome,) = play(engine, "verifiers_guess")
    assert text(work) == (
        "<|im_start|>user\nA number?<|im_end|>\n<|im_start|>assistant\n 3<|im_end|>\n"
        "<|im_start|>user\nHigher.<|im_end|>\n<|im_start|>assistant\n9 <|im_end|>\n"
        "<|im_start|>user\nLower.<|im_end|>\n<|im_start|>assistant\n5<|im_end|>"
    )
    whole = [*work.prompt.tokens, *work.responses[0].tokens]
    assert all(tokens == whole[: len(tokens)] for tokens in engine.asked), "nothing is tokenized again"
    assert (outcome.problem, outcome.reward, outcome.turns) == ("", 11.5, 3)


@installed
def test_an_episode_that_a_limit_ends_is_judged_as_it_is() -> None:
    work, (outcome,) = play(Scripted(["3", "9", "7"]), "verifiers_guess", turns=2)
    assert work.responses[0].end == "length"
    assert (outcome.problem, outcome.reward, outcome.turns) == ("", 1.0, 2)


@installed
def test_an_environment_that_fails_gives_no_reward() -> None:
    _, (outcome,) = play(Scripted(["3"]), "verifiers_guess", settings={"fails": True})
    assert "RuntimeError: no such number" in outcome.problem
    assert math.isnan(outcome.reward)


@installed
def test_tools_of_a_task_are_called_by_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SAMPLING", Sampling(maxNewTokens=100))
    tokenizer = chat_tokenizer()
    offered = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    tokenizer.chat_template = offered + tokenizer.chat_template
    call = '<tool_call>{"name":  "adder_add", "arguments": {"a": 2,"b" : 3}}</tool_call>'
    engine = Scripted([call, '<tool_call>{"name": "sum", "arguments": {}}</tool_call>', "5"])
    work, (outcome,) = play(engine, "verifiers_tools", tokenizer=tokenizer, turnSeconds=300)
    assert text(work).startswith("[adder_add]<|im_start|>user\n2 + 3 = ?")
    assert f"{call}<|im_end|>\n<|im_start|>tool\n5<|im_end|>" in text(work), "as it was sampled"
    assert "error: there is no tool 'sum'; tools: adder_add" in text(work)
    assert (outcome.problem, outcome.reward, outcome.turns) == ("", 1.0, 3)


@installed
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "taskset 'no_such_one' not found"),
        ({"taskset": {}}, r"needs settings\.taskset with an id, such as \{id: textarena\}; got \{\}"),
        ({"taskset": {"id": "verifiers_sums"}, "agents": 1}, "does not load: ValidationError: .*agents"),
    ],
)
def test_settings_that_are_none_of_an_environment_are_one_error(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        play(Scripted(["6"]), "no_such_one", settings=settings)


def test_an_interpreter_without_verifiers_is_one_error_with_its_remedy() -> None:
    with pytest.raises(InvalidJob, match=r"verifiers is missing; .*pip install verifiers==0\.4\.0`, and set"):
        play(Scripted(["6"]), "verifiers_sums", python=sys.executable)
