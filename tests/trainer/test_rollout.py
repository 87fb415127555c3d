"""Answers from generators: what is read from vLLM's reply, and prompts that outlive the generator they were sent to."""

import time
from collections import Counter

import pytest
from tests.trainer.servers import CHOICE, Generator

from rlhf_api.run import Member
from rlhf_api.spec import Sampling
from rlhf_trainer.comms.http import Background, HttpError
from rlhf_trainer.generation.vllm import VllmClient, request_seed, rollout
from rlhf_trainer.records import Prompt

PROMPTS = [Prompt(f"0/{i}", (i, i + 1), {}) for i in range(12)]


def test_a_choice_becomes_a_rollout():
    made = rollout(PROMPTS[0], CHOICE, version=3)
    assert (made.tokens, made.logprobs, made.versions, made.finished) == ((5, 6), (-0.5, -1.5), (3, 3), True)
    assert not rollout(PROMPTS[0], CHOICE | {"finish_reason": "length"}, version=3).finished


@pytest.mark.parametrize(
    "broken",
    [
        {"token_ids": None},
        {"token_ids": []},
        {"logprobs": None},
        {"logprobs": {"token_logprobs": [-0.5]}},
    ],
)
def test_a_choice_without_what_training_needs_is_an_error(broken):
    with pytest.raises(ValueError, match="answered prompt 0/0 without tokens or their log-probabilities"):
        rollout(PROMPTS[0], CHOICE | broken, version=0)


def test_request_seeds_are_stable_and_spread():
    seeds = {
        request_seed(seed, f"{epoch}/{row}") for seed in (0, 1) for epoch in (0, 1) for row in range(500)
    }
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(1, "0/7") == 137764664, "the same on every machine"


@pytest.fixture
def http():
    with Background("token") as background:
        yield background


def client(http: Background, *, concurrent: int = 2, answers: int = 2) -> VllmClient:
    sampling = Sampling(answersPerPrompt=answers, temperature=0.7, topK=9, maxNewTokens=5)
    return VllmClient(
        http, model="job", sampling=sampling, seed=1, eos=99, concurrent=concurrent, timeout=10.0
    )


def ask(
    asker: VllmClient, prompts: list[Prompt], members: list[Member], version: int = 0, **more
) -> tuple[list, list[Prompt], set[str]]:
    """Answers, unanswered prompts, and the names of those who failed, with a membership that stays as it is."""
    outcome = asker.start(
        prompts, members, version, **({"current": lambda: {m.uid: m for m in members}} | more)
    ).result(60)
    return outcome.answers, outcome.unanswered, set(outcome.failed)


def test_answers_come_in_the_order_of_the_prompts(http):
    servers = [Generator(http, "a"), Generator(http, "b")]
    done, left, failed = ask(client(http), PROMPTS, [s.member for s in servers], version=6)
    assert (left, failed) == ([], set())
    assert [(r.prompt.id, r.tokens) for r in done] == [
        (p.id, (p.tokens[0], k)) for p in PROMPTS for k in range(2)
    ]
    assert all(r.versions == (6, 6) for r in done)
    assert all(s.highest <= 2 for s in servers), "no more at once than asked for"
    body = servers[0].asked[0]
    assert (body["n"], body["temperature"], body["top_k"], body["max_tokens"]) == (2, 0.7, 9, 5)
    assert (body["model"], body["stop_token_ids"], body["logprobs"]) == ("job", [99], 0)
    seeds = {tuple(b["prompt"]): b["seed"] for s in servers for b in s.asked}
    assert seeds == {p.tokens: request_seed(1, p.id) for p in PROMPTS}, "whoever answers"


def test_everyone_gets_their_share_though_one_could_take_all(http):
    servers = [Generator(http, name) for name in "abc"]
    ask(client(http, concurrent=256), PROMPTS, [s.member for s in servers])
    assert [len(s.asked) for s in servers] == [4, 4, 4]


def test_the_number_of_prompts_left_is_told(http):
    told: list[int] = []
    ask(client(http), PROMPTS, [Generator(http, "a").member], left=told.append)
    assert told == list(range(12, -1, -1))


@pytest.mark.parametrize("status", [0, 500, 503])
def test_prompts_of_a_generator_that_fails_go_to_the_other(http, status):
    bad, good = Generator(http, "bad", fails=2, status=status), Generator(http, "good")
    done, left, failed = ask(client(http), PROMPTS, [bad.member, good.member])
    assert failed == {"bad"}
    assert left == []
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}, "each once, with both answers"


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_answers_that_a_server_cut_off_as_it_ended_are_asked_for_again(http, reason):
    ending, good = Generator(http, "ending"), Generator(http, "good")
    ending.finish_reason = reason
    done, left, failed = ask(client(http), PROMPTS, [ending.member, good.member])
    assert (left, failed) == ([], {"ending"})
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}
    assert all(r.finished for r in done)


def test_a_generator_that_drains_finishes_what_it_has_and_gets_no_more(http):
    leaving, staying = Generator(http, "leaving"), Generator(http, "staying")
    leaving.open.clear()
    members = {s.member.uid: s.member for s in (leaving, staying)}

    def current() -> dict[str, Member]:
        if len(leaving.asked) == 2:  # as soon as it has its first prompts
            members["leaving"] = leaving.member.model_copy(update={"draining": True})
        return members

    def left(count: int) -> None:
        if count == 2:  # all that are left are with the one that drains
            leaving.open.set()

    done, unanswered, failed = ask(
        client(http), PROMPTS, [leaving.member, staying.member], current=current, left=left
    )
    assert (unanswered, failed) == ([], set())
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}
    assert (len(leaving.asked), len(staying.asked)) == (2, 10)


def test_prompts_of_a_generator_that_is_gone_without_a_word_go_to_the_other(http):
    """A lost node closes no connection; the host takes it out of the membership."""
    lost, staying = Generator(http, "lost"), Generator(http, "staying")
    lost.open.clear()
    began = time.monotonic()

    def current() -> dict[str, Member]:
        gone = len(lost.asked) == 2
        return {s.member.uid: s.member for s in (lost, staying) if not (gone and s is lost)}

    done, left, failed = ask(client(http), PROMPTS, [lost.member, staying.member], current=current)
    assert (left, failed) == ([], {"lost"})
    assert Counter(r.prompt.id for r in done) == {p.id: 2 for p in PROMPTS}
    assert time.monotonic() - began < 5, "not after the timeout of a prompt"


def test_prompts_of_a_server_that_ends_without_answering_go_to_the_other(http):
    """vLLM may close its door and then wait for answers that its engine, which it has stopped, will never give."""
    ending, staying = Generator(http, "ending"), Generator(http, "staying")
    ending.open.clear()
    members = [ending.member, staying.member]
    asked = client(http).start(PROMPTS, members, 0, current=lambda: {m.uid: m for m in members})
    while len(ending.asked) < 2:
        time.sleep(0.01)
    ending.stop_listening()
    outcome = asked.result(8)  # not after the timeout of a prompt, which is 10 s
    assert set(outcome.failed) == {"ending"}
    assert outcome.unanswered == []
    assert Counter(r.prompt.id for r in outcome.answers) == {p.id: 2 for p in PROMPTS}


def test_prompts_wait_when_everyone_drains(http):
    server = Generator(http, "a")
    draining = {"a": server.member.model_copy(update={"draining": True})}
    assert ask(client(http), PROMPTS, [server.member], current=lambda: draining) == ([], PROMPTS, set())
    assert server.asked == []


def test_prompts_wait_when_no_generator_is_left(http):
    bad, gone = Generator(http, "bad", fails=3), Generator(http, "gone")
    gone.stop()
    asker = client(http, concurrent=1, answers=1)
    done, left, failed = ask(asker, PROMPTS, [bad.member, gone.member])
    assert failed == {"bad", "gone"}
    assert len(done) == 3
    assert [p.id for p in left] == [p.id for p in PROMPTS if p.id not in {r.prompt.id for r in done}]

    again = Generator(http, "again")
    rest, left, failed = ask(asker, left, [again.member])
    assert (len(rest), left, failed) == (9, [], set())
    assert ask(asker, PROMPTS, []) == ([], PROMPTS, set())


def test_a_request_that_is_refused_is_not_tried_elsewhere(http):
    """Every generator would refuse it, and each would be taken for dead."""
    refuses = Generator(http, "a", fails=0, status=403)
    with pytest.raises(HttpError, match="HTTP 403"):
        ask(client(http), PROMPTS, [refuses.member])
    assert len(refuses.asked) <= 2, "what was in flight, and no more"


def test_a_prompt_that_is_refused_is_told_and_the_others_are_answered(http):
    picky, members = Generator(http, "a", fails=7, status=400), []
    members.append(picky.member)
    outcome = client(http).start(PROMPTS, members, 0, current=lambda: {"a": picky.member}).result(60)
    assert len(outcome.answers) == 7 * 2
    assert outcome.unanswered == []
    assert outcome.failed == {}
    assert len(outcome.refused) == 5
    assert all(why.startswith("HTTP 400: ") for why in outcome.refused.values())
    assert len(picky.asked) == len(PROMPTS), "each once"


def test_prompts_that_go_to_another_generator_are_told(http):
    bad, good = Generator(http, "bad", fails=2), Generator(http, "good")
    members = [bad.member, good.member]
    outcome = client(http).start(PROMPTS, members, 0, current=lambda: {m.uid: m for m in members}).result(60)
    assert 1 <= len(outcome.requeued) <= 2, "what was with the one that failed"
    assert len(bad.asked) - 2 == len(outcome.requeued)
