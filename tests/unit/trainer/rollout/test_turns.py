"""Episodes of several turns: what an environment replies goes on, whoever dies, and what ends an episode."""

import asyncio
import re
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny.models import chat_tokenizer

from rlhf_api.contract.run import Member
from rlhf_api.dataset.rows import PromptRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import Role
from rlhf_api.sections.data import Data
from rlhf_api.sections.environment import Environment
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.encode import encode_prompt, end_tokens
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.dispatch.outcomes import Interrupted, Refused
from rlhf_trainer.environments.environments import Environments
from rlhf_trainer.environments.record import turns_of
from rlhf_trainer.environments.rendering import Rendering
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.rollout.clients.turns_client import TurnsClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.tensors.records import Outcome, Prompt

TOKENIZER = chat_tokenizer()
SAMPLING = Sampling(maxNewTokens=12)
ENDS = end_tokens(TOKENIZER, None, SAMPLING)
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
DATA = Data(train=("unused",), maxPromptLength=200)
GAMES = "tests.unit.trainer.environments.games"
MEMBER = Member(role=Role.GENERATOR, uid="u", name="g", address="http://nowhere", index=0)


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


class Scripted:
    """In place of an engine: turns that a script says, by the response's index; each token alone, the `interrupt`-th of
    all is the last before new weights. `...` behind a turn: it is cut off; `#`: it ends without a token."""

    def __init__(self, *scripts: list[str], interrupt: int = -1, version: int = 3) -> None:
        self.scripts, self.left, self.version = scripts, interrupt, version
        self.asked: list[list[int]] = []

    async def ask(
        self, _member: Member, work: PartialRollout, progress: Callable[[], None]
    ) -> PartialRollout:
        indices = range(len(work.responses))
        if len(work.responses) == 1 and work.prompt.id.count("/") == 2:
            indices = [int(work.prompt.id.rpartition("/")[2])]
        await asyncio.gather(
            *(self._sample(work, r, i, progress) for r, i in zip(work.responses, indices, strict=True))
        )
        if not work.is_complete:
            raise Interrupted
        return work

    async def _sample(
        self, work: PartialRollout, response: Response, index: int, progress: Callable[[], None]
    ) -> None:
        self.asked.append([*response.before(work.prompt)])
        script, turns = self.scripts[index % len(self.scripts)], turns_of(response.tokens, response.sampled)
        number = sum(bool(turn.reply) for turn in turns)
        text = script[min(number, len(script) - 1)]
        whole = [*ids(text.rstrip(".#")), *([] if text[-1] in ".#" else [END])]
        start = response.turn_start
        for token in whole[len(response.tokens) - start :]:
            if self.left == 0:
                return
            self.left -= 1
            response.add(array("i", [token]), array("f", [-0.5]), self.version)
            progress()
            await asyncio.sleep(0)
            assert work.most is not None
            if len(response.tokens) in (work.most, start + SAMPLING.max_new_tokens) and token != END:
                response.finish("length")
                work.ended(work.prompt, response)
                return
        response.finish("stop")
        work.ended(work.prompt, response)

    async def listens(self, _member: Member) -> bool:
        return True


def prompt(number: int = 0, *, tokenizer: Any = TOKENIZER, text: bool = False, **row: Any) -> Prompt:
    begin: Any = "Begin." if text else [{"role": "user", "content": "Begin."}]
    row = {"prompt": begin, **row}
    encoded = encode_prompt(tokenizer, PromptRow.model_validate(row).prompt, 200)
    return Prompt(f"0/{number}", encoded.prompt, row)


@asynccontextmanager
async def client(
    engine: Scripted, name: str = "Guess", *, tokenizer: Any = TOKENIZER, **fields: Any
) -> AsyncIterator[TurnsClient]:
    section = Environment(**{"path": f"{GAMES}:{name}", "workers": 1, **fields})
    pool = WorkerPool(section)
    stops = StopStrings(tokenizer, ())
    try:
        await pool.start()
        rendering = Rendering(tokenizer, DATA, ENDS, stops, pool.schemas)
        environments = Environments(section, rendering, pool)
        yield TurnsClient(
            engine, environments, sampling=SAMPLING, ends=ENDS, stops=stops, most=section.max_tokens
        )
    finally:
        await pool.close()


def nothing() -> None:
    pass


def play(
    engine: Scripted,
    name: str = "Guess",
    *,
    responses: int = 1,
    row: dict[str, Any] | None = None,
    again: int = 0,
    **fields: Any,
) -> tuple[PartialRollout, list[Response]]:
    """Plays one prompt to the end, asking `again` after so many interruptions; also the responses that ended."""
    ended: list[Response] = []
    work = PartialRollout.begin(
        prompt(**(row or {})), responses, ended=lambda _prompt, response: ended.append(response)
    )

    async def run() -> None:
        async with client(engine, name, **fields) as turns:
            for _ in range(again):
                with pytest.raises(Interrupted):
                    await turns.ask(MEMBER, work, nothing)
                engine.left, engine.version = -1, engine.version + 1
            await turns.ask(MEMBER, work, nothing)

    asyncio.run(run())
    return work, ended


def text(work: PartialRollout, index: int = 0) -> str:
    return str(TOKENIZER.decode([*work.prompt.tokens, *work.responses[index].tokens]))


def test_an_episode_is_one_response_of_turns_and_replies():
    work, ended = play(Scripted(["3", "8", "5"]))
    assert text(work) == (
        "<|im_start|>user\nA number from 1 to 9?<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
        "<|im_start|>user\nHigher.<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"
        "<|im_start|>user\nLower.<|im_end|>\n<|im_start|>assistant\n5<|im_end|>"
    )
    (response,) = ended
    assert response is work.responses[0]
    assert response.end == "stop"
    sampled = [t for t, flag in zip(response.tokens, response.sampled, strict=True) if flag]
    assert sampled == [*ids("3"), END, *ids("8"), END, *ids("5"), END]
    assert {p for p, flag in zip(response.logprobs, response.sampled, strict=True) if not flag} == {0.0}
    outcome = response.outcome
    assert outcome is not None
    assert (outcome.reward, outcome.turns, outcome.problem) == (1.5, 3, "")
    assert [reward for _, reward in outcome.turn_rewards] == [0.25, 0.25, 1.0]
    assert all(response.tokens[place] == END and response.sampled[place] for place, _ in outcome.turn_rewards)


def test_each_turn_is_asked_for_with_exactly_the_tokens_before_it():
    engine = Scripted(["3", "8", "5"])
    work, _ = play(engine)
    whole = [*work.prompt.tokens, *work.responses[0].tokens]
    assert len(engine.asked) == 3
    assert all(tokens == whole[: len(tokens)] for tokens in engine.asked)


def test_the_responses_to_a_prompt_go_on_independently():
    work, ended = play(Scripted(["5"], ["1", "5"], ["1", "2", "3", "4", "5"]), responses=6)
    assert [r.outcome.turns for r in work.responses if r.outcome] == [1, 2, 5, 1, 2, 5]
    assert len(ended) == 6


def test_a_turn_that_is_cut_off_gets_its_end_as_context():
    work, _ = play(Scripted(["1 and what more...", "5"]))
    (response,) = work.responses
    at = response.tokens.index(END)
    assert at == SAMPLING.max_new_tokens
    assert not response.sampled[at]
    assert response.outcome is not None
    assert response.outcome.turns == 2
    assert "1 and what m<|im_end|>\n" in text(work)


@pytest.mark.parametrize(
    ("limits", "turns"), [({"turns": 2}, 2), ({"maxTokens": 80}, 3), ({"maxTokens": 28}, 1)]
)
def test_a_limit_ends_an_episode_with_the_rewards_so_far(limits: dict[str, int], turns: int):
    work, _ = play(Scripted(["1"]), **limits)
    (response,) = work.responses
    assert response.end == "length"
    assert response.outcome is not None
    assert (response.outcome.turns, response.outcome.reward) == (turns, 0.25 * turns)
    assert response.sampled == array("b") or response.sampled[-1], "it ends with a turn, not with a reply"
    assert len(response.tokens) <= limits.get("maxTokens", 9999)


@pytest.mark.parametrize("reply", ["print", "flood"])
def test_a_reply_longer_than_an_episode_ends_it_with_the_rewards_so_far(reply: str):
    """Also one that is not even read."""
    work, _ = play(Scripted([reply, "5"]), "Misbehaves", maxTokens=20)
    (response,) = work.responses
    assert (response.end, response.outcome) == ("length", Outcome(0.0, 1, ((5, 0.0),)))
    assert not response.sampled, "no token of the reply is in the response"


@pytest.mark.parametrize("name", ["raise", "nan", "none"])
def test_what_an_environment_does_wrong_ends_its_own_episode_alone(name: str):
    work, _ = play(Scripted(["1", name], ["1", "5"]), "Misbehaves", responses=2)
    bad, good = (response.outcome for response in work.responses)
    assert bad is not None
    assert bad.problem
    assert bad.reward != bad.reward, "no reward, which is not a reward of zero"
    assert good is not None
    assert (good.problem, good.reward) == ("", 1.25)


@pytest.mark.parametrize("left", [0, 1, 3, 4, 5, 6])
def test_new_weights_in_an_episode_leave_it_to_be_continued(left: int):
    """Wherever they come: before any token, in a turn, at its end."""
    engine = Scripted(["12", "34", "5"], interrupt=left)
    work, _ = play(engine, again=1)
    (response,) = work.responses
    assert response.outcome is not None
    assert (response.outcome.turns, response.outcome.problem) == (3, "")
    versions = [v for v, flag in zip(response.versions, response.sampled, strict=True) if flag]
    assert versions == [3] * left + [4] * (len(versions) - left)
    assert "12<|im_end|>" in text(work)
    assert text(work).endswith("5<|im_end|>")


def test_a_process_that_dies_has_its_episodes_played_again(tmp_path: Path):
    mark = tmp_path / "mark"
    work, _ = play(
        Scripted(["1", "2", "5"], ["1", "5"]),
        "DiesOnce",
        responses=2,
        row={"mark": str(mark)},
        writable=(str(tmp_path),),
    )
    assert mark.exists()
    first, second = (response.outcome for response in work.responses)
    assert first is not None
    assert second is not None
    assert (first.problem, first.reward, second.reward) == ("", 1.5, 1.25)


def test_an_environment_that_replies_otherwise_the_second_time_begins_anew(tmp_path: Path):
    mark = tmp_path / "mark"
    engine = Scripted(["1", "2", "5"])
    work, _ = play(engine, "Forgets", row={"mark": str(mark)}, maxTokens=400, writable=(str(tmp_path),))
    (response,) = work.responses
    assert response.outcome is not None
    assert (response.outcome.problem, response.outcome.reward) == ("", 1.5)
    assert engine.asked.count([*work.prompt.tokens]) == 2, "its first turn was sampled twice"


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("die", "was ended by SIGKILL"),
        ("hang", r"took longer than 1 s \(spec"),
        ("stop", r"took longer than 1 s \(spec"),
        ("refused", "ConnectionRefusedError: the database"),
    ],
)
def test_an_environment_that_always_dies_is_given_up_after_its_retries(turn: str, reason: str):
    fields = {"turnSeconds": 1, "retries": 1}
    work, _ = play(Scripted(["1", turn], ["1", "2", "5"]), "Misbehaves", responses=2, **fields)
    bad, good = (response.outcome for response in work.responses)
    assert bad is not None
    assert re.search(reason, bad.problem)
    assert good is not None
    assert (good.problem, good.reward) == ("", 1.5), "those beside it lose nothing"


@pytest.mark.parametrize("name", ["ClosesNever", "ClosesWithItsProcess"])
def test_an_episode_has_its_reward_however_it_is_closed(name: str) -> None:
    work, _ = play(Scripted(["3", "5"]), name, turnSeconds=1, retries=0)
    (outcome,) = [response.outcome for response in work.responses]
    assert outcome is not None
    assert (outcome.reward, outcome.problem) == (1.25, "")


def test_episodes_beside_one_that_ends_their_process_get_their_rewards() -> None:
    """Calls of a class with coroutines are under way together: it is not known at once which one ended the process."""
    works = [PartialRollout.begin(prompt(i, dies=i < 2), 1, ended=lambda *_: None) for i in range(6)]

    async def run() -> None:
        async with client(Scripted(["1"]), "DiesWhereTheRowSays", retries=0) as turns:
            await asyncio.gather(*(turns.ask(MEMBER, work, nothing) for work in works))

    asyncio.run(run())
    outcomes = [outcome for work in works for response in work.responses if (outcome := response.outcome)]
    assert [bool(outcome.problem) for outcome in outcomes] == [True] * 2 + [False] * 4
    assert [outcome.reward for outcome in outcomes[2:]] == [1.0] * 4


def test_more_episodes_than_may_live_at_once_wait_for_their_turn():
    work, _ = play(Scripted(["1", "5"]), responses=5, parallel=2)
    assert [r.outcome.reward for r in work.responses if r.outcome] == [1.25] * 5


def test_an_episode_that_waits_is_not_woken_by_the_end_of_each_other_one(monkeypatch: pytest.MonkeyPatch):
    """An episode costs what it does however many wait: counted in what the event loop is given to do."""
    call_soon, calls = asyncio.BaseEventLoop.call_soon, []

    def count(*arguments: Any, **context: Any) -> asyncio.Handle:
        calls[-1] += 1
        return call_soon(*arguments, **context)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon", count)
    for episodes in (10, 40):
        calls.append(0)
        play(Scripted(["1", "5"]), responses=episodes, parallel=1)
    few, many = calls
    assert many / 40 < 1.2 * few / 10


def test_episodes_that_nobody_asks_for_make_way_and_are_played_again():
    async def run() -> list[float]:
        engine = Scripted(["1", "2", "5"], interrupt=3)
        async with client(engine, parallel=1) as turns:
            works = [PartialRollout.begin(prompt(number), 1) for number in range(3)]
            with pytest.raises(Interrupted):
                await turns.ask(MEMBER, works[0], nothing)
            engine.left = -1
            for work in (*works[1:], works[0]):
                await turns.ask(MEMBER, work, nothing)
            return [work.responses[0].outcome.reward for work in works if work.responses[0].outcome]

    assert asyncio.run(run()) == [1.5] * 3


def test_an_episode_that_is_played_again_does_not_make_way(tmp_path: Path):
    """Also where who asked for it has gone meanwhile, as with a generator that dies."""
    engine = Scripted(["1", "2", "5"], interrupt=5)
    work, other = (PartialRollout.begin(prompt(number, hold=str(tmp_path)), 1) for number in range(2))
    other.prompt.row.pop("hold")

    async def run() -> list[str]:
        (tmp_path / "go").touch()
        async with client(engine, "Waits", writable=(str(tmp_path),)) as turns:
            with pytest.raises(Interrupted):
                await turns.ask(MEMBER, work, nothing)
        for mark in ("go", "begun"):
            (tmp_path / mark).unlink()
        engine.left = -1
        async with client(engine, "Waits", parallel=1, writable=(str(tmp_path),)) as turns:
            asking = asyncio.ensure_future(turns.ask(MEMBER, work, nothing))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            asking.cancel()
            after = asyncio.ensure_future(turns.ask(MEMBER, other, nothing))
            await asyncio.sleep(0.01)
            (tmp_path / "go").touch()
            await after
            await turns.ask(MEMBER, work, nothing)
        return [outcome.problem for each in (work, other) if (outcome := each.responses[0].outcome)]

    assert asyncio.run(run()) == [""] * 2


def test_an_episode_of_a_snapshot_goes_on_where_it_was():
    """Another trainer, with new processes: the environment is brought to where it was by the tokens alone."""
    engine = Scripted(["1", "2", "5"], interrupt=5)

    async def run(work: PartialRollout, *, stops: bool) -> None:
        async with client(engine) as turns:
            if stops:
                with pytest.raises(Interrupted):
                    await turns.ask(MEMBER, work, nothing)
            else:
                await turns.ask(MEMBER, work, nothing)

    work = PartialRollout.begin(prompt(), 1)
    asyncio.run(run(work, stops=True))
    before = list(work.responses[0].tokens)
    resumed = PartialRollout(work.prompt, [work.responses[0].copy()])
    engine.left, requests = -1, len(engine.asked)
    asyncio.run(run(resumed, stops=False))
    assert list(resumed.responses[0].tokens[: len(before)]) == before
    assert engine.asked[requests] == [*work.prompt.tokens, *before], "no token was sampled again"
    assert resumed.responses[0].outcome is not None
    assert resumed.responses[0].outcome.reward == 1.5


def test_a_class_that_opens_otherwise_each_time_gives_no_reward():
    work, _ = play(Scripted(["5"]), "OpensOtherwise", responses=2)
    first, second = (response.outcome for response in work.responses)
    assert first is not None
    assert first.reward == 1.0, "the one that opened the prompt"
    assert second is not None
    assert "reset opened otherwise" in second.problem


def test_a_prompt_that_cannot_be_opened_is_refused_with_the_reason():
    with pytest.raises(Refused, match="opens no episode: reset raised ValueError: invalid literal"):
        play(Scripted(["5"]), row={"secret": "x"})


def test_tools_that_the_template_does_not_offer_are_refused():
    with pytest.raises(InvalidJob, match="the template reads no 'tools'"):
        play(Scripted(["5"]), "Calculator")
    with pytest.raises(InvalidJob, match="make the prompts conversations"):
        play(Scripted(["5"]), "Calculator", row={"text": True})


def test_an_opening_that_the_template_refuses_is_that_of_its_prompt_alone():
    strict = chat_tokenizer()
    strict.chat_template = (
        "{% for m in messages if m.role == 'jury' %}{{ raise_exception('no jury') }}{% endfor %}"
        + strict.chat_template
    )
    opening = '[{"role": "jury", "content": "Guilty?"}]'
    with pytest.raises(Refused, match=r"opens no episode: .*the template refuses .*no jury"):
        play(Scripted(["5"]), "OpensWith", row={"opening": opening}, tokenizer=strict)


def test_text_without_a_template_is_played_as_text():
    work, _ = play(Scripted(["3", "5"]), row={"text": True})
    assert text(work) == "A number from 1 to 9?3<|im_end|>Higher.5<|im_end|>"


def test_a_closed_round_waits_for_no_environment():
    async def run() -> float | None:
        engine = Scripted(["1", "5"])
        async with client(engine) as turns:
            work = PartialRollout.begin(prompt(), 1)
            work.closing = lambda: bool(work.responses[0].tokens)
            with pytest.raises(Interrupted):
                await turns.ask(MEMBER, work, nothing)
            assert len(engine.asked) == 1
            work.closing = lambda: False
            await turns.ask(MEMBER, work, nothing)
            outcome = work.responses[0].outcome
            return outcome.reward if outcome else None

    assert asyncio.run(run()) == 1.25


def test_who_waits_for_an_environment_may_go_and_the_next_gets_its_reply():
    async def run() -> int:
        engine = Scripted(["1", "5"])
        async with client(engine) as turns:
            work = PartialRollout.begin(prompt(), 1)
            asking = asyncio.ensure_future(turns.ask(MEMBER, work, nothing))
            while not work.responses[0].tokens or work.responses[0].tokens[-1] != END:
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await turns.ask(MEMBER, work, nothing)
            assert work.responses[0].outcome is not None
            return work.responses[0].outcome.turns

    assert asyncio.run(run()) == 2


def test_a_turn_that_nobody_waits_for_any_more_is_not_read_into_another_episode():
    """As of a held-out prompt, whose id comes again with the next evaluation."""

    async def run() -> str:
        engine = Scripted(["1", "5"])
        async with client(engine, "Counts") as turns:
            first, again = (PartialRollout.begin(prompt(), 1) for _ in range(2))
            asking = asyncio.ensure_future(turns.ask(MEMBER, first, nothing))
            while not first.responses[0].tokens or first.responses[0].tokens[-1] != END:
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)  # the environment reads the turn
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            engine.scripts = (["2", "5"],)
            await turns.ask(MEMBER, again, nothing)
            return text(again)

    assert "2<|im_end|>\n<|im_start|>user\nTurn 1.<|im_end|>" in asyncio.run(run())


def test_responses_of_a_snapshot_begin_anew_where_the_class_opens_otherwise_now():
    """As after a change of its settings: all responses to a prompt have the same prompt, the ended ones too."""

    async def run(engine: Scripted, work: PartialRollout, **fields: Any) -> None:
        async with client(engine, **fields) as turns:
            with suppress(Interrupted):
                await turns.ask(MEMBER, work, nothing)

    engine = Scripted(["5"], ["1", "2", "3", "5"], interrupt=8)
    work = PartialRollout.begin(prompt(), 2)
    asyncio.run(run(engine, work))
    assert [response.end for response in work.responses] == ["stop", None]
    engine.left = -1
    asyncio.run(run(engine, work, settings={"low": 2}))
    assert "A number from 2 to 9?" in text(work)
    assert [r.outcome.reward for r in work.responses if r.outcome] == [1.0, 1.75]


def test_a_turn_is_over_where_the_engine_says_so():
    """By a stop string that it alone can tell, as it has decoded the turn from its begin."""
    work, _ = play(Scripted(["3#", "5"]))
    assert "3<|im_end|>\n<|im_start|>user\nHigher.<|im_end|>" in text(work)
    (response,) = work.responses
    assert response.outcome is not None
    assert response.outcome.turns == 2
    assert not response.sampled[response.tokens.index(END)]
