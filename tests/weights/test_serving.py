"""One trainer and one real vLLM server at a time: what is served, and what is refused."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
import torch
from tests.support.kube import eventually
from tests.weights.support import TOKEN, generator, serves, status, weights

from rlhf_api.run import Member
from rlhf_api.spec import Sampling
from rlhf_trainer.comms.http import HttpError
from rlhf_trainer.generation.vllm import VllmClient
from rlhf_trainer.records import Prompt

pytestmark = pytest.mark.slow


def target(server) -> Member:
    return generator(0, server.address)


@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_serves_exactly_what_was_sent(kind, request, http, make_sync, models):
    server = request.getfixturevalue(kind)
    assert serves(http, server, models(kind, 0))
    assert status(http, server)["version"] is None
    assert ask(server, "/ready", {}) == (503, b'{"ok": false, "reason": "holds no weights of the trainer"}')
    sync = make_sync()
    for version, seed in ((1, 1), (2, 2)):
        new = models(kind, seed)
        assert not serves(http, server, new)
        report = sync.send([target(server)], lambda new=new: weights(new), version)
        assert report.holders == (target(server),)
        assert (report.lost, report.attempts, report.epoch) == ({}, 1, 1)
        assert serves(http, server, new)
        now = status(http, server)
        assert (now["version"], now["digest"]) == (version, report.digest)
        assert (now["staged_version"], now["open"]) == (None, False)
        assert ask(server, "/ready", {})[0] == 200


def test_a_hung_engine_is_not_ready_though_healthy(tied, make_sync, models):
    make_sync().send([target(tied)], lambda: weights(models("tied", 1)), 1)
    assert ask(tied, "/ready", {})[0] == 200
    (engine,) = [p for p in psutil.Process(tied.process.pid).children() if "EngineCore" in p.cmdline()[0]]
    engine.suspend()
    try:
        assert ask(tied, "/health", {})[0] == 200
        assert ask(tied, "/ready", {}) == (503, b'{"ok": false, "reason": "the workers do not answer"}')
        assert ask(tied, "/live", {})[0] == 200, "for a while: a new process would cost a model's load"
    finally:
        engine.resume()
    assert ask(tied, "/live", {})[0] == 200
    assert ask(tied, "/ready", {})[0] == 200


def test_weights_of_another_model_are_refused_and_the_old_ones_stay(tied, http, make_sync, models):
    sync = make_sync()
    mine = models("tied", 1)
    sync.send([target(tied)], lambda: weights(mine), 1)

    def wrong():
        yield from ((n, p[:-1] if n.endswith("embed_tokens.weight") else p) for n, p in weights(mine))

    report = sync.send([target(tied)], wrong, 2)
    assert report.holders == ()
    assert "embed_tokens.weight has shape [257, 64], the model's has [258, 64]" in report.lost[target(tied)]
    assert serves(http, tied, mine)
    assert status(http, tied)["version"] == 1
    assert b"holds weight version 1, the trainer sent 2" in ask(tied, "/ready", {})[1]
    assert sync.send([target(tied)], lambda: weights(models("tied", 2)), 3).holders == (target(tied),)


def test_an_error_of_the_trainer_s_own_is_raised_and_the_old_weights_stay(tied, http, make_sync, models):
    sync = make_sync()
    mine = models("tied", 1)
    sync.send([target(tied)], lambda: weights(mine), 1)

    def broken():
        yield next(weights(mine))
        raise ZeroDivisionError("in the trainer")

    with pytest.raises(ZeroDivisionError):
        sync.send([target(tied)], broken, 2)
    assert serves(http, tied, mine)
    assert sync.send([target(tied)], lambda: weights(models("tied", 2)), 3).holders == (target(tied),)


def test_answers_come_while_weights_are_on_their_way(tied, http, make_sync, models):
    new = models("tied", 3)
    body = {"model": "policy", "prompt": [65], "max_tokens": 8, "ignore_eos": True}

    def tensors():
        for number, pair in enumerate(weights(new)):
            if number == 4:  # the first bucket has gone
                answer = http.run(http.json("POST", f"{tied.address}/v1/completions", body, timeout=15))
                assert answer["choices"][0]["finish_reason"] == "length"
            yield pair

    assert make_sync().send([target(tied)], tensors, 1).holders == (target(tied),)
    assert serves(http, tied, new)


def test_requests_in_flight_survive_and_go_on_with_the_new_weights(tied, http, make_sync, models):
    body = {
        "model": "policy",
        "prompt": [65],
        "max_tokens": 120,
        "ignore_eos": True,
        "temperature": 1.0,
        "n": 4,
    }
    running = http.start(http.json("POST", f"{tied.address}/v1/completions", body, timeout=60))
    new = models("tied", 3)
    make_sync().send([target(tied)], lambda: weights(new), 1)
    answer = running.result(60)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 4
    assert serves(http, tied, new)


def test_an_epoch_that_is_over_is_refused_and_the_next_send_recovers(tied, http, make_sync, models):
    sync = make_sync()
    mine = models("tied", 1)
    sync.send([target(tied)], lambda: weights(mine), 1)
    store = {"host": "127.0.0.1", "port": sync._store.port, "epoch": "0.0", "timeout_s": 5.0}
    late = {"init_info": store | {"rank_offset": 1, "world_size": 2}}
    with pytest.raises(HttpError, match=r"weight epoch 0\.0 is over"):
        http.run(http.json("POST", f"{tied.address}/init_weight_transfer_engine", late, timeout=20))
    assert serves(http, tied, mine)
    report = sync.send([target(tied)], lambda: weights(models("tied", 2)), 2)
    assert report.holders == (target(tied),)


@pytest.mark.parametrize("point", ["bucket:1", "before-commit", "committed"])
def test_a_trainer_that_dies_leaves_old_or_new_weights_serving_and_the_next_takes_over(
    point, tied, http, make_sync, models, folder
):
    old = models("tied", 1)
    sync = make_sync()
    sync.send([target(tied)], lambda: weights(old), 1)
    sync.close()
    trainer = [
        sys.executable,
        "-m",
        "tests.weights.dying_trainer",
        tied.address,
        str(folder / "tied-2"),
        point,
    ]
    done = subprocess.run(trainer, input=TOKEN, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not http.run(http.json("GET", f"{tied.address}/is_paused", timeout=20))["is_paused"]
    kept = point != "committed"
    assert status(http, tied)["version"] == (1 if kept else 99)
    assert serves(http, tied, old if kept else models("tied", 2))
    if point == "bucket:1":  # until the next trainer comes it holds older weights than were sent
        eventually(lambda: status(http, tied)["failure"], "its worker notices that the broadcast broke")
        assert ask(tied, "/ready", {})[0] == 503
    else:
        assert ask(tied, "/ready", {})[0] == 200
    new = models("tied", 3)
    assert make_sync().send([target(tied)], lambda: weights(new), 5).holders == (target(tied),)
    assert serves(http, tied, new)


@pytest.mark.parametrize("token", [None, "", "wrong", "Basic " + TOKEN])
def test_nobody_gets_in_without_the_token(token, tied):
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = token if " " in token else f"Bearer {token}"
    paths = json.loads(ask(tied, "/openapi.json", {"Authorization": f"Bearer {TOKEN}"})[1])["paths"]
    assert {"/pause", "/update_weights", "/collective_rpc", "/v1/completions"} <= paths.keys()
    for path, methods in [*paths.items(), ("/metrics", ["get"]), ("/docs", ["get"]), ("/nowhere", ["get"])]:
        for method in methods:
            code, body = ask(tied, path, headers, method.upper())
            assert code == (200 if path == "/health" else 401), (method, path, body)


def ask(server, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, bytes]:
    data = b"{}" if method == "POST" else None
    request = urllib.request.Request(server.address + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_equal_weights_have_equal_digests_and_others_do_not(tied, make_sync, models):
    sync = make_sync()
    digests = [
        sync.send([target(tied)], lambda seed=seed: weights(models("tied", seed)), version).digest
        for version, seed in enumerate((1, 2, 1))
    ]
    assert digests[0] == digests[2] != digests[1]
    assert torch.cuda.is_available() or len(digests[0]) == 64


def test_a_server_told_to_end_with_prompts_under_way_gives_them_back(untied, tied, http):
    """Some of vLLM's answers to what it had when its engine was stopped are errors, some never come."""
    staying, ending = generator(0, tied.address, "0"), generator(1, untied.address, "1")
    sampling = Sampling(maxNewTokens=100, minNewTokens=100)
    client = VllmClient(http, model="policy", sampling=sampling, seed=1, eos=0, concurrent=16, timeout=60.0)
    prompts = [Prompt(f"0/{i}", (40 + i,), {}) for i in range(32)]
    members = {member.uid: member for member in (staying, ending)}
    asked = client.start(
        prompts, [*members.values()], 0, current=lambda: members, arrived=lambda _: untied.process.terminate()
    )
    outcome = asked.result(30)
    assert outcome.unanswered == []
    assert [answer.prompt.id for answer in outcome.answers] == [prompt.id for prompt in prompts]
    untied.process.wait(30)  # nor does it wait for ever for who asked
