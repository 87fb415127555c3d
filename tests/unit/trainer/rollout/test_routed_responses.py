"""Experts of responses: which tokens' are asked for, when a response goes on elsewhere or in another turn."""

from array import array

import numpy as np
import pytest
from aiohttp import web
from tests.unit.trainer.scoring.servers import Generator

from rlhf_api.sections.evaluation import Penalties
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.dispatch.outcomes import Interrupted
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.in_flight.saved_responses import decode
from rlhf_trainer.rollout.in_flight.saved_responses import encode as encode_saved
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.rollout.responses import message
from rlhf_trainer.tensors.expert_rows import UNKNOWN, ExpertsShape
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.frames import Kind, encode
from rlhf_trainer.transport.http import HttpClient

EXPERTS = 100
PROMPT = Prompt("0/0", (10, 11, 12), {})


@pytest.fixture
def http():
    with HttpClient("token") as background:
        yield background


@pytest.fixture
def server(http):
    return Generator(http, "a")


def client(http: HttpClient) -> VllmClient:
    sampling = Sampling(maxNewTokens=8)
    return VllmClient(http, sampling=sampling, seed=1, ends=[99], experts=ExpertsShape(1, 1, EXPERTS))


def speaking(*tokens: int, kind: Kind = Kind.STOP, short: int = 0, wrong: int = 0):
    """A server that adds these tokens to each response, two in a frame; the expert of a token is the token, plus
    `wrong`, and `short` are missing."""

    async def speak(response: web.StreamResponse, body: dict, *_: object) -> None:
        whole = [*body["prompt"], *tokens]
        for k in range(body["n"]):
            at, first = len(body["prompt"]), body["experts_from"]
            for begin in range(0, len(tokens), 2):
                part = tokens[begin : begin + 2]
                read = whole[first : at + begin + len(part) - 1]
                first += len(read)
                rows = np.array(read[short:], dtype=np.uint8).reshape(-1, 1, 1) + np.uint8(wrong)
                last = kind if begin + 2 >= len(tokens) else Kind.TOKENS
                await response.write(encode(k, last, 0, part, [-0.5] * len(part), None, rows))

    return speak


def ask(http: HttpClient, server: Generator, work: PartialRollout, *tokens: int, **more) -> None:
    server._stream = speaking(*tokens, **more)
    http.run(client(http).ask(server.member, work, lambda: None))


def experts(response: Response) -> list[int]:
    return response.experts.whole().flatten().tolist()


def test_all_tokens_but_the_last_have_the_experts_of_who_read_them(http, server):
    work = PartialRollout.begin(PROMPT, 2)
    ask(http, server, work, 20, 21, 22)
    assert [experts(response) for response in work.responses] == [[10, 11, 12, 20, 21]] * 2
    arrays, _ = message(Responses(work.rollouts()), {"0/0": 0})
    assert arrays["routing"].flatten().tolist() == [10, 11, 12, 20, 21, UNKNOWN] * 2


def test_a_response_that_goes_on_elsewhere_keeps_the_experts_of_its_tokens(http, server):
    work = PartialRollout.begin(PROMPT, 1)
    with pytest.raises(Interrupted):
        ask(http, server, work, 20, 21, kind=Kind.ABORT)
    (work,) = [PartialRollout(PROMPT, each.responses) for each in decode(encode_saved([work]))]
    ask(http, server, work, 22)
    assert [body["experts_from"] for body in server.asked] == [0, 4]
    assert experts(work.responses[0]) == [10, 11, 12, 20, 21]


def test_a_turn_after_others_brings_the_experts_of_the_reply_before_it(http, server):
    work = PartialRollout.begin(PROMPT, 1)
    ask(http, server, work, 20, 21)
    (response,) = work.responses
    response.end = None
    response.add_context(array("i", [30, 31]))
    ask(http, server, work, 22, 23)
    assert server.asked[-1]["experts_from"] == 4
    assert experts(response) == [10, 11, 12, 20, 21, 30, 31, 22]
    response.end = None
    response.add_context(array("i", [40, 41]), branch=True)
    ask(http, server, work, 24, 25)
    assert (server.asked[-1]["prompt"], server.asked[-1]["experts_from"]) == ([40, 41], 0)
    assert experts(response) == [10, 11, 12, 20, 21, 30, 31, 22, UNKNOWN, 40, 41, 24], "no router saw 23"


def test_tokens_that_are_sampled_again_have_their_experts_anew(http, server):
    work = PartialRollout.begin(PROMPT, 1, penalties=Penalties(presence=1.0))
    with pytest.raises(Interrupted):
        ask(http, server, work, 20, 21, kind=Kind.ABORT)
    ask(http, server, work, 22, 23, 24)
    assert experts(work.responses[0]) == [10, 11, 12, 22, 23]


def test_responses_that_are_not_trained_on_come_without_experts(http, server):
    work = PartialRollout.begin(PROMPT, 1, masks=False)

    async def speak(response: web.StreamResponse, *_: object) -> None:
        await response.write(encode(0, Kind.STOP, 0, [20], [-0.5]))

    server._stream = speak
    http.run(client(http).ask(server.member, work, lambda: None))
    assert server.asked[0]["experts_from"] is None
    arrays, _ = message(Responses(work.rollouts()), {"0/0": 0})
    assert "routing" not in arrays


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"short": 1}, "experts of 3 tokens, where 4 have been read"),
        ({"wrong": 90}, "experts are 0 to 99; got 100 to 110"),
    ],
)
def test_a_reply_with_experts_that_cannot_be_is_malformed(wrong, says, http, server):
    with pytest.raises(ValueError, match=f"the reply to prompt 0/0 is malformed: {says}"):
        ask(http, server, PartialRollout.begin(PROMPT, 1), 20, 21, **wrong)
