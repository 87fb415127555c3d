"""Keys of requests, derived from the job's token: what an answer proves, and what a key opens."""

import json
from typing import Any

import pytest

from rlhf_api.contract.proof import Prover, key_of, new_nonce

URL = "http://10.0.0.1:20001/v1/status"


def prover(**other: Any) -> Prover:
    return Prover(**{"token": "token", "host": "10.0.0.1", "port": 20001, **other})


def answer(server: Prover, nonce: str) -> bytes:
    return (server.answer(nonce) or "").encode()


def bearer(key: str | None) -> bytes:
    return f"Bearer {key}".encode()


@pytest.mark.parametrize(("host", "url"), [("10.0.0.1", URL), ("fd00::1", "http://[fd00::1]:20001")])
def test_a_key_opens_the_process_that_has_proven_itself(host, url):
    nonce, server = new_nonce(), prover(host=host)
    key = key_of("token", url, nonce, answer(server, nonce))
    assert server.admits(bearer(key))
    assert not prover(host=host).admits(bearer(key)), "nor the one that is started after it"
    assert not prover(host=host, nonce=server.nonce, port=20002).admits(bearer(key))
    assert not server.admits(bearer("wrong"))
    assert server.admits(bearer("token")), "as operators of release 0.1.0 send it"


@pytest.mark.parametrize(
    "other",
    [{"token": "another"}, {"host": "10.0.0.2"}, {"port": 20002}],
    ids=lambda other: next(iter(other)),
)
def test_an_answer_of_another_job_or_from_another_address_proves_nothing(other):
    nonce = new_nonce()
    assert key_of("token", URL, nonce, answer(prover(**other), nonce)) is None


def test_an_answer_to_another_question_proves_nothing():
    assert key_of("token", URL, new_nonce(), answer(prover(), new_nonce())) is None


@pytest.mark.parametrize(
    "reply",
    [
        *(
            "",
            "[]",
            "nothing",
            "[" * 100_000,
            "{}",
            '{"nonce": 1, "proof": 2}',
            '{"nonce": null, "proof": ""}',
        ),
        json.dumps({"nonce": "0" * 32, "proof": "é"}),
        json.dumps({"nonce": "0" * 33, "proof": "0" * 64}),
    ],
    ids=lambda reply: reply[:30],
)
def test_what_is_no_answer_proves_nothing(reply):
    assert key_of("token", URL, new_nonce(), reply.encode()) is None


@pytest.mark.parametrize("nonce", ["", "0" * 31, "0" * 33, "A" * 32, "0" * 31 + "\n", "0" * 32 + "\n"])
def test_what_is_no_nonce_is_not_answered(nonce):
    assert prover().answer(nonce) is None


def test_without_a_token_nothing_is_proven_and_nobody_admitted():
    assert prover(token="").answer(new_nonce()) is None
    assert not prover(token="").admits(b"Bearer ")
