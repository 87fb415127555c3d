"""Agent programs as environments: what they ask is answered with turns of the policy, and trained on as sampled."""

import asyncio
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.tiny.models import chat_tokenizer
from tests.unit.trainer.rollout import test_turns as turns
from tests.unit.trainer.rollout.test_turns import Scripted, text

from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.rollout.in_flight.saved_responses import decode, encode
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.rollout.responses import pack
from rlhf_trainer.tensors.records import Outcome

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "environments.md"
AGENTS = Path(__file__).parents[1] / "environments" / "agents.py"


def play(engine: Scripted, agent: str, **fields: Any) -> tuple[PartialRollout, list[Outcome]]:
    program = sys.executable, str(AGENTS), agent
    work, _ = turns.play(engine, path=None, program=program, **fields)
    return work, [response.outcome for response in work.responses if response.outcome]


@pytest.mark.parametrize("agent", ["guess", "openai", "streaming"])
def test_a_program_plays_an_episode_over_the_openai_api(agent: str) -> None:
    """The same tokens as those of a class with the same game, and its reward at the end."""
    engine = Scripted(["3", "8", "5"])
    work, (outcome,) = play(engine, agent)
    assert text(work) == (
        "<|im_start|>user\nA number from 1 to 9?<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
        "<|im_start|>user\nHigher.<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"
        "<|im_start|>user\nLower.<|im_end|>\n<|im_start|>assistant\n5<|im_end|>"
    )
    whole = [*work.prompt.tokens, *work.responses[0].tokens]
    assert all(tokens == whole[: len(tokens)] for tokens in engine.asked), "nothing is tokenized again"
    assert (outcome.problem, outcome.reward, outcome.turns) == ("", 1.5, 3)
    assert [reward for _, reward in outcome.turn_rewards] == [0.0, 0.0, 1.5]


def test_the_program_of_the_guide_plays_as_it_says(tmp_path: Path) -> None:
    (program,) = [
        code
        for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        if "OpenAI()" in code
    ]
    (tmp_path / "agent.py").write_text(program)
    command = sys.executable, str(tmp_path / "agent.py")
    work, _ = turns.play(Scripted(["4", "7"]), path=None, program=command, row={"answer": 7})
    (outcome,) = [response.outcome for response in work.responses if response.outcome]
    assert (outcome.problem, outcome.reward, outcome.turns) == ("", 1.0, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_a_request_are_rendered_and_their_calls_parsed(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(turns, "SAMPLING", Sampling(maxNewTokens=100))
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = (
        "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + tokenizer.chat_template
    )
    call = 'I add.<tool_call>{"name":  "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    work, (outcome,) = play(Scripted([call, "5"]), "tools", tokenizer=tokenizer, row={"stream": stream})
    assert text(work) == (
        "[add]<|im_start|>user\nA number from 1 to 9?<|im_end|>\n<|im_start|>assistant\n"
        f"{call}<|im_end|>\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n5<|im_end|>"
    )
    assert (outcome.problem, outcome.reward) == ("", 1.0)


def test_the_responses_to_a_prompt_are_a_process_each() -> None:
    _, outcomes = play(Scripted(["5"], ["1", "5"]), "guess", responses=4, workers=2)
    assert [outcome.reward for outcome in outcomes] == [1.0, 1.25, 1.0, 1.25]


def test_a_program_that_a_limit_cuts_may_end_with_the_reward_so_far() -> None:
    work, (outcome,) = play(Scripted(["1"]), "cut", turns=3)
    assert work.responses[0].end == "length"
    assert (outcome.problem, outcome.reward, outcome.turns) == ("", 0.75, 3)


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (
            "asks_on",
            "a limit of spec.environment ended the episode, and then the program ended with exit code 1",
        ),
        ("fails", "the program ended with exit code 1: no such module"),
        ("gives_nothing", r'must be \{"reward": a number\}; got \'\''),
        ("gives_nan", "a reward must be a finite number; got NaN"),
    ],
)
def test_a_program_without_a_reward_ends_its_own_episode_with_the_reason(agent: str, reason: str) -> None:
    _, (outcome,) = play(Scripted(["1"]), agent, turns=2)
    assert re.search(reason, outcome.problem), outcome.problem
    assert outcome.reward != outcome.reward, "no reward, which is not a reward of zero"


OPENING = "<|im_start|>user\nA number from 1 to 9?<|im_end|>\n"
ON, BEGIN = "<|im_start|>user\nOn.<|im_end|>\n", "<|im_start|>assistant\n"


def turn_of(text: str) -> str:
    return f"<|im_start|>assistant\n{text}<|im_end|>\n"


@pytest.mark.parametrize(
    ("agent", "branches"),
    [
        ("rewrites", [OPENING + turn_of("Other.") + ON + BEGIN]),
        ("forgets", ["<|im_start|>user\nSummary.<|im_end|>\n" + BEGIN]),
        ("asks_again", [OPENING + BEGIN]),
        ("adds_a_turn", [OPENING + turn_of("1") + turn_of("Mine.") + ON + BEGIN]),
        ("changes_tools", ["[add]" + OPENING + turn_of("1") + ON + BEGIN]),
        (
            "asks_aside",
            ["<|im_start|>user\nAside.<|im_end|>\n" + BEGIN, OPENING + turn_of("1") + ON + BEGIN],
        ),
    ],
)
@pytest.mark.parametrize("interrupt", [-1, 3])
def test_a_history_that_is_rewritten_forks_a_branch(agent: str, branches: list[str], interrupt: int) -> None:
    """It follows what the program sent, and nothing before it; each turn is sampled and trained once. After a death of
    all processes in the second turn too, when it is played again."""
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = (
        "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + tokenizer.chat_template
    )
    engine = Scripted(["1", "2", "3", "4"], interrupt=interrupt)
    work = PartialRollout.begin(turns.prompt(tokenizer=tokenizer), 1)

    async def run(work: PartialRollout) -> None:
        fields: Any = {"path": None, "program": (sys.executable, str(AGENTS), agent), "tokenizer": tokenizer}
        async with turns.client(engine, maxTokens=400, **fields) as client:
            await client.ask(turns.MEMBER, work, turns.nothing)

    if interrupt > 0:
        with pytest.raises(turns.Interrupted):
            asyncio.run(run(work))
        (saved,) = decode(encode([work]))
        work = replace(work, responses=saved.responses)
        engine.left = -1
    asyncio.run(run(work))
    (response,) = work.responses
    outcome = response.outcome
    assert outcome is not None
    count = 4 if agent == "asks_aside" else 2
    assert (outcome.problem, outcome.reward, outcome.turns) == ("", 1.0, count)
    begins, ends = response.branches, [*response.branches[1:], len(response.tokens)]
    opened = [tokenizer.decode(response.tokens[a:b]) for a, b in zip(begins, ends, strict=True)]
    assert [text[: len(branch)] for text, branch in zip(opened, branches, strict=True)] == branches
    sampled = [t for t, flag in zip(response.tokens, response.sampled, strict=True) if flag]
    assert tokenizer.decode(sampled) == "".join(f"{number}<|im_end|>" for number in "1234"[:count])
    last = response.before(work.prompt)
    assert engine.asked[-1] == [*last[: len(engine.asked[-1])]], "nothing before the branch was asked with"
    packed = pack(work.rollouts())
    apart, _ = packed.by_branch()
    assert [tokenizer.decode(apart.row(i)) for i in range(1, len(apart))] == opened


def test_a_branch_that_does_not_fit_ends_the_episode_as_a_limit_does() -> None:
    work, (outcome,) = play(Scripted(["1"]), "writes_at_length", maxTokens=200)
    (response,) = work.responses
    assert (response.end, outcome.problem, outcome.reward) == ("length", "", 1.0)
    assert not response.branches


def test_a_program_that_asks_nothing_opens_no_episode() -> None:
    with pytest.raises(turns.Refused, match="ended without a request to OPENAI_BASE_URL"):
        play(Scripted(["1"]), "asks_nothing")


def test_a_command_that_is_no_program_is_refused_at_once() -> None:
    with pytest.raises(
        turns.InvalidJob, match=r"environment\.program: 'no-such' cannot be run: 'no-such' is not"
    ):
        turns.play(Scripted(["1"]), path=None, program=("no-such",))


def test_a_program_that_hangs_is_begun_again_and_then_given_up() -> None:
    _, (outcome,) = play(Scripted(["1"]), "hangs", turnSeconds=5, retries=1)
    assert "the program took longer than 5 s (spec.environment.turnSeconds)" in outcome.problem


def test_a_request_that_is_refused_costs_nothing() -> None:
    _, (outcome,) = play(Scripted(["5"]), "refused")
    assert (outcome.problem, outcome.reward) == ("", 1.0)


def test_new_weights_in_an_episode_leave_its_program_waiting() -> None:
    work, (outcome,) = play(Scripted(["3", "8", "5"], interrupt=3), "guess", again=1)
    assert (outcome.problem, outcome.reward) == ("", 1.5)
    (response,) = work.responses
    versions = [v for v, flag in zip(response.versions, response.sampled, strict=True) if flag]
    assert versions == [3, 3, 3, 4, 4, 4], "its turns are of both"


def test_what_a_program_starts_ends_with_its_episode(tmp_path: Path) -> None:
    _, (outcome,) = play(
        Scripted(["5"]), "spawns", row={"child": str(tmp_path / "child")}, writable=(str(tmp_path),)
    )
    assert outcome.reward == 1.0
    assert has_ended(tmp_path / "child")


def test_what_a_program_starts_ends_with_the_pool(tmp_path: Path) -> None:
    with pytest.raises(turns.Interrupted):
        play(
            Scripted(["5"], interrupt=0),
            "spawns",
            row={"child": str(tmp_path / "child")},
            writable=(str(tmp_path),),
        )
    assert has_ended(tmp_path / "child")


def test_programs_of_a_worker_that_dies_are_played_again_and_leave_nothing(tmp_path: Path) -> None:
    child = tmp_path / "child"
    killing = threading.Thread(target=kill_worker_of, args=(child,))
    killing.start()
    engine, writable = Scripted(["3", "5"]), (str(tmp_path),)
    _, (outcome,) = play(engine, "waits_once", row={"child": str(child)}, writable=writable)
    killing.join()
    assert (outcome.problem, outcome.reward) == ("", 1.25)
    assert has_ended(tmp_path / "child")


def kill_worker_of(file: Path) -> None:
    """Once the child with this file among its arguments is there."""
    while not _has_process(str(file)):
        time.sleep(0.05)
    (worker,) = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.cmdline()[:1] == [sys.executable]
        and "rlhf_trainer.environments.workers.worker" in process.cmdline()
    ]
    worker.kill()


def has_ended(file: Path) -> bool:
    """True once the child with this file among its arguments has."""
    assert file.exists(), "it was started"
    deadline = time.monotonic() + 30
    while (lives := _has_process(str(file))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not lives


def _has_process(argument: str) -> bool:
    return any(argument in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
