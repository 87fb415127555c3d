"""One trainer and one real vLLM server at a time: what is served, and what is refused."""

import json
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from tests.support.forked.forks import ended, fork
from tests.support.kubernetes.kube import eventually
from tests.support.tiny.models import byte_tokenizer
from tests.unit.trainer.weights.on_vllm import dying_trainer
from tests.unit.trainer.weights.support import (
    TOKEN,
    Adapted,
    PartlyTrained,
    generator,
    serves,
    status,
    weights,
)

from rlhf_api.contract.run import Member
from rlhf_api.sections.evaluation import NO_PENALTIES, Penalties
from rlhf_api.sections.sampling import Sampling, Thinking
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.dispatch.assignments import Limits
from rlhf_trainer.dispatch.dispatch import Observer
from rlhf_trainer.dispatch.outcomes import Interrupted, Refused
from rlhf_trainer.local_generation.processors import Penalized
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.rollout.clients.thought_budget import ThoughtBudget
from rlhf_trainer.rollout.clients.vllm_client import VllmClient, request_seed
from rlhf_trainer.rollout.in_flight.rounds import start_round
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Prompt, Rollout, Sequences
from rlhf_trainer.tensors.sampling_mask import Kept
from rlhf_trainer.transport.frames import GENERATE
from rlhf_trainer.transport.http import HttpError
from rlhf_trainer.weights.buckets import Spec

pytestmark = pytest.mark.slow


def target(server) -> Member:
    return generator(0, server.address)


@pytest.mark.parametrize("kind", ["untied", "experts", "biased", "tied"])
def test_serves_exactly_what_was_sent(kind, request, http, make_sync, models):
    server, sync = request.getfixturevalue(kind), make_sync()
    if kind in ("experts", "tied"):  # which other tests have, too
        sync.send([target(server)], lambda: weights(models(kind, 0)), 0)
    else:
        assert status(http, server)["version"] is None
        not_yet = b'{"ok": false, "reason": "holds no weights of the trainer"}'
        assert ask(server, "/ready", {}) == (503, not_yet)
    assert serves(http, server, models(kind, 0))
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
        assert [sync.changed([target(server)]) for _ in range(2)] == ["", ""]


@pytest.mark.parametrize(
    ("kind", "dtype", "layers"),
    [
        ("tied", torch.float32, None),
        ("tied", torch.bfloat16, None),
        ("experts", torch.float32, ("q_proj", "experts.gate_up_proj", "experts.down_proj")),
    ],
)
def test_a_base_and_an_adapter_serve_bit_for_bit_what_merged_weights_do(
    kind, dtype, layers, request, http, make_sync, models
):
    """The base travels once, whichever trainer sends it, and the matrices alone with each version."""
    server = request.getfixturevalue(kind)
    policy, sync, served = Adapted(models(kind, 1).to(dtype), layers), make_sync(), {}
    for version in (1, 2):
        policy.train(version)
        whole = sync.send([target(server)], policy.named_tensors, version)
        assert whole.holders == (target(server),)
        served[version] = call(http, server, "fingerprints")
        assert status(http, server)["base"] is None, "there is no room for it beside whole weights"
    assert served[1] != served[2]
    for version, sender in ((1, sync), (2, make_sync())):
        report = send_trained(sender, http, server, policy, version, served[version])
        assert (report.base_bytes > 0) == (version == 1)
        assert report.bytes < whole.bytes / 5
    if dtype is torch.float32:
        assert serves(http, server, policy.unwrapped)


@pytest.mark.parametrize(
    ("kind", "dtype", "frozen"),
    [
        ("tied", torch.float32, ("embed_tokens", "layers.0", "layers.1.self_attn.q_proj")),
        ("untied", torch.bfloat16, ("layers.*.mlp", "norm", "layers.0.self_attn.v_proj")),
        ("experts", torch.float32, ("embed_tokens", "experts")),
    ],
)
def test_frozen_parts_and_what_is_trained_serve_bit_for_bit_what_whole_weights_do(
    kind, dtype, frozen, request, http, make_sync, models
):
    """The frozen ones travel once, whichever trainer sends them, and the others alone with each version."""
    server = request.getfixturevalue(kind)
    policy, sync, served = PartlyTrained(models(kind, 1).to(dtype), *frozen), make_sync(), {}
    for version in (1, 2):
        policy.train(version)
        whole = sync.send([target(server)], policy.named_tensors, version)
        served[version] = call(http, server, "fingerprints")
    assert served[1] != served[2]
    for version, sender in ((1, sync), (2, make_sync())):
        report = send_trained(sender, http, server, policy, version, served[version])
        assert status(http, server)["base"] == policy.frozen
        assert report.bytes == size(policy, trained=True)
        assert report.base_bytes == (size(policy, trained=False) if version == 1 else 0)
        assert report.bytes + size(policy, trained=False) == whole.bytes
    if dtype is torch.float32:
        assert serves(http, server, policy.unwrapped)


def send_trained(sender, http, server, policy: Adapted | PartlyTrained, version: int, served: object) -> Any:
    """The report of sending what the policy trains for this version beside its base, which makes the server's memory
    that of `served`."""
    policy.train(version)
    report = sender.send([target(server)], policy.version_tensors, version, base=policy.base)
    assert report.holders == (target(server),), report.lost
    assert call(http, server, "fingerprints") == served
    now = status(http, server)
    assert (now["version"], now["digest"]) == (version, report.digest)
    assert now["base"] == policy.base.fingerprint
    assert sender.changed([target(server)]) == ""
    return report


def size(policy: PartlyTrained, *, trained: bool) -> int:
    """Bytes in buckets."""
    items = dict(policy.state_items()).items()
    return sum(Spec.of(name, tensor).room for name, tensor in items if tensor.requires_grad == trained)


def test_an_adapter_of_another_model_is_refused_and_the_old_version_stays(tied, http, make_sync, models):
    policy, sync = Adapted(models("tied", 1)), make_sync()
    sync.send([target(tied)], policy.version_tensors, 1, base=policy.base)

    def wrong():
        yield from ((n, m[:-1] if "k_proj.weight.lora_B" in n else m) for n, m in policy.version_tensors())

    report = sync.send([target(tied)], wrong, 2, base=policy.base)
    assert report.holders == ()
    layer = "model.layers.0.self_attn.k_proj.weight"
    assert f"update of {layer} has shape [31, 64], its base weights [32, 64]" in report.lost[target(tied)]
    assert status(http, tied)["version"] == 1
    assert serves(http, tied, policy.unwrapped)
    report = sync.send([target(tied)], policy.version_tensors, 3, base=policy.base)
    assert (report.holders, report.base_bytes) == ((target(tied),), 0)


def call(http, server, method: str, *args: object) -> Any:
    """A method of the server's one worker."""
    body = {"method": method, "args": args}
    answer = http.run(http.json("POST", f"{server.address}/collective_rpc", body, timeout=60))
    return answer["results"][0]


@pytest.mark.parametrize(
    ("kind", "name"), [("tied", "model.embed_tokens.weight"), ("untied", "model.layers.0.self_attn.qkv_proj")]
)
def test_a_weight_that_changes_while_it_serves_is_told(kind, name, request, make_sync, models, http):
    """To the trainer, that asks after each step. No probe shows it, nor what the last update's digest was."""
    server, sync = request.getfixturevalue(kind), make_sync()
    assert sync.send([target(server)], lambda: weights(models(kind, 1)), 7).holders == (target(server),)
    assert sync.changed([target(server)]) == ""
    before = status(http, server)
    call(http, server, "spoil_weight", name)
    assert status(http, server) == before
    assert ask(server, "/ready", {})[0] == 200
    what = f"generator-0 (worker 0): {name} is no longer what was loaded as weight version 7"
    assert sync.changed([target(server)]) == what
    sync.send([target(server)], lambda: weights(models(kind, 2)), 8)
    assert serves(http, server, models(kind, 2))
    assert sync.changed([target(server)]) == what, "its process is not to be trusted any more"
    assert sync.changed([generator(1, "http://127.0.0.1:9")]) == "", "who does not answer says nothing"
    taking_turns = make_sync(takes_turns=True)
    assert taking_turns.sleep([target(server)]) == (what, {}), "nor is it when it sleeps"
    assert taking_turns.send([target(server)], lambda: weights(models(kind, 2)), 9).holders == (
        target(server),
    )


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
                answer = http.run(http.json("POST", f"{tied.address}/v1/completions", body, timeout=100))
                assert answer["choices"][0]["finish_reason"] == "length"
            yield pair

    assert make_sync().send([target(tied)], tensors, 1).holders == (target(tied),)
    assert serves(http, tied, new)


@contextmanager
def slow_steps(http, server) -> Iterator[None]:
    """Responses of some steps are still under way when a test acts, however busy the machine."""
    call(http, server, "pace", 0.5)
    try:
        yield
    finally:
        call(http, server, "pace", 0)


def test_responses_under_way_stop_before_new_weights_and_go_on_with_them(tied, http, make_sync, models):
    """Each token bears the version that sampled it, and agrees with the trainer's model of that version."""
    old, new = models("tied", 0), models("tied", 3)
    sampling = Sampling(maxNewTokens=120, minNewTokens=120, responsesPerPrompt=32)
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256])
    work, begun = PartialRollout.begin(Prompt("0/0", (65,), {}), 32), threading.Event()
    running: list[Future[PartialRollout]] = []

    def reached(point: str) -> None:
        if point == "before-commit":
            running.append(http.start(client.ask(target(tied), work, begun.set)))
            assert begun.wait(120)

    make_sync().send([target(tied)], lambda: weights(old), 1)
    with slow_steps(http, tied):
        make_sync(fault=reached).send([target(tied)], lambda: weights(new), 2)
        with pytest.raises(Interrupted):
            running[0].result(120)
    assert work.begun
    assert not work.is_complete
    assert {v for response in work.responses for v in response.versions} == {1}
    before = [len(response.tokens) for response in work.responses]
    http.run(client.ask(target(tied), work, lambda: None))
    assert work.is_complete
    assert serves(http, tied, new)
    for at, rollout in list(zip(before, work.rollouts(), strict=True))[:4]:
        assert list(rollout.versions) == [1] * at + [2] * (120 - at)
        off = {
            model: of_model(model, rollout, ends=[256]) - torch.tensor(rollout.logprobs)
            for model in (old, new)
        }
        assert off[old][:at].abs().max() < 1e-4
        assert off[new][at:].abs().max() < 1e-4
        assert off[old][at:].abs().mean() > 1e-2


def test_requests_that_wait_in_the_engine_are_interrupted_like_those_it_works_on(
    tied, http, make_sync, models
):
    """vLLM runs 128 at once here. The prompts are more than it reads at once, and it reads none in parts, of which an
    engine on a CPU dies where requests have seeds."""
    sampling = Sampling(maxNewTokens=60, minNewTokens=60)
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256])
    works, begun = (
        [PartialRollout.begin(Prompt(f"0/{i}", (i,) * 60, {}), 1) for i in range(160)],
        threading.Event(),
    )
    running: list[Future[PartialRollout]] = []

    def all_are_there() -> bool:
        return sum(in_metrics(tied, f"vllm:num_requests_{state}") for state in ("running", "waiting")) == 160

    def reached(point: str) -> None:
        if point == "before-commit":
            running.extend(http.start(client.ask(target(tied), work, begun.set)) for work in works)
            eventually(all_are_there, "the engine has them")
            assert begun.wait(120)

    make_sync().send([target(tied)], lambda: weights(models("tied", 0)), 1)
    sync = make_sync(fault=reached)
    with slow_steps(http, tied):
        assert sync.send([target(tied)], lambda: weights(models("tied", 3)), 2).holders == (target(tied),)
        errors = [request.exception(120) for request in running]
    assert {type(error) for error in errors if error is not None} == {Interrupted}
    stopped = [work for work, error in zip(works, errors, strict=True) if error is not None]
    assert {work.begun for work in stopped} == {True, False}, "some waited"


@torch.no_grad()
def of_model(model, response: Rollout, *, temperature: float = 1.0, ends: Sequence[int] = ()) -> torch.Tensor:
    """A response's log-probabilities by the trainer's own code, where `ends` could not be sampled: [R]."""
    sequences = Sequences.pack([(response.prompt.tokens, response.tokens)])
    if response.kept_counts:
        mask = Kept(
            *(torch.tensor(part, dtype=torch.int32) for part in (response.kept_counts, response.kept))
        )
        sequences = replace(sequences, kept=mask)
    if response.sampled:
        sequences = replace(sequences, sampled=torch.tensor(response.sampled, dtype=torch.bool))
    if not ends:
        read = ResponseLogprobs(temperature)
        return infer(Forward(model, 512, 257), sequences, read, sequences.response_lengths)
    logits = model(sequences.tokens[None]).logits[0, len(response.prompt.tokens) - 1 : -1] / temperature
    logits[:, list(ends)] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.tensor(response.tokens)[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_generator_and_trainer_agree_at_any_temperature(temperature, tied, http, make_sync, models):
    model = models("tied", 1)
    make_sync().send([target(tied)], lambda: weights(model), 1)
    sampling = Sampling(maxNewTokens=24, responsesPerPrompt=4, temperature=temperature)
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256])
    work = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 4)
    for response in http.run(client.ask(target(tied), work, lambda: None)).rollouts():
        expected = of_model(model, response, temperature=temperature)
        assert torch.allclose(torch.tensor(response.logprobs), expected, atol=1e-4)
        at_one = of_model(model, response)
        assert temperature == 1 or not torch.allclose(expected, at_one, atol=1e-2)


@pytest.mark.parametrize("restriction", [{"topP": 0.9}, {"minP": 0.3}], ids=str)
def test_the_trainer_replays_the_sampling_mask_of_the_generator(tied, http, make_sync, models, restriction):
    """With top-p or min-p, top-k and a least length the log-probabilities agree as without; over the whole vocabulary,
    as they are without the mask, they do not."""
    model = models("tied", 1)
    make_sync().send([target(tied)], lambda: weights(model), 1)
    sampling = Sampling(
        maxNewTokens=24, minNewTokens=3, responsesPerPrompt=4, temperature=0.8, topK=20, **restriction
    )
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256])
    work = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 4)
    for response in http.run(client.ask(target(tied), work, lambda: None)).rollouts():
        sampled = torch.tensor(response.logprobs)
        assert len(response.kept_counts) == len(response.tokens)
        assert len(set(response.kept_counts)) > 1, "not always 20: the other has a say"
        assert torch.allclose(of_model(model, response, temperature=0.8), sampled, atol=1e-4)
        whole = replace(response, kept_counts=array("i"), kept=array("i"))
        assert (of_model(model, whole, temperature=0.8) - sampled).abs().mean() > 0.05
    for temperature in (0, None):
        held_out = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 1, temperature, masks=False)
        (response,) = http.run(client.ask(target(tied), held_out, lambda: None)).rollouts()
        assert not response.kept_counts


STRUCTURED = [
    ({"regex": "[a-f]{6}(yes|no)"}, r"[a-f]{6}(yes|no)"),
    ({"choice": ("eleven men", "eleven women")}, r"eleven (wo)?men"),
    ({"grammar": "root ::= pair | pair pair\npair ::= [a-c] [0-9]"}, r"([a-c][0-9]){1,2}"),
    ({"jsonSchema": {"enum": ["no", False]}}, '"no"|false'),
]


@pytest.mark.parametrize(("constraint", "expected"), STRUCTURED, ids=str)
def test_responses_are_what_they_must_be_and_training_replays_what_that_leaves_out(
    tied, http, make_sync, models, constraint, expected
):
    """Also where another request goes on in the middle of one."""
    model, tokenizer = models("tied", 1), byte_tokenizer()
    make_sync().send([target(tied)], lambda: weights(model), 1)
    sampling = Sampling(maxNewTokens=24, temperature=0.8, topK=20, structuredOutputs=constraint)
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256])
    work, finished = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 4), 0
    for begun in (0, 2):
        before = [list(response.tokens[:begun]) for response in work.responses]
        for response in work.responses:
            response.cut(begun)
            response.end = None
        http.run(client.ask(target(tied), work, lambda: None))
        for response, so_far in zip(work.rollouts(), before, strict=True):
            sampled = torch.tensor(response.logprobs)
            assert list(response.tokens[:begun]) == so_far
            assert torch.allclose(of_model(model, response, temperature=0.8), sampled, atol=1e-4)
            whole = replace(response, kept_counts=array("i"), kept=array("i"))
            assert (of_model(model, whole, temperature=0.8) - sampled).abs().mean() > 0.5
            if response.finished:
                text = tokenizer.decode(list(response.tokens[:-1]))
                assert re.fullmatch(expected, text)
                finished += 1
    assert finished >= 4


def test_what_follows_a_thought_that_was_closed_is_sampled_after_the_closing(tied, http, make_sync, models):
    model = models("tied", 1)
    make_sync().send([target(tied)], lambda: weights(model), 1)
    sampling = Sampling(maxNewTokens=24, topK=20, thinking=Thinking(budget=9, end="</t>", closing="...</t>"))
    budget = ThoughtBudget.of(sampling, byte_tokenizer())
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256], thought=budget)
    work = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 8)
    closed = 0
    for response in http.run(client.ask(target(tied), work, lambda: None)).rollouts():
        if response.sampled:
            closed += 1
            assert list(response.sampled) == [1] * 9 + [0] * 7 + [1] * (len(response.tokens) - 16)
            assert response.tokens[9:16] == budget.closing
        sampled = torch.tensor(response.of_sampled(response.logprobs))
        replayed = replace(response, kept_counts=response.of_sampled(response.kept_counts))
        assert torch.allclose(of_model(model, replayed), sampled, atol=1e-4)
    assert closed >= 4


def test_a_stop_string_ends_a_response_where_the_trainer_would_end_it(tied, http, make_sync, models):
    """vLLM reads the text of each token as it comes, from the first that a least length allows on."""
    make_sync().send([target(tied)], lambda: weights(models("tied", 1)), 1)
    tokenizer = byte_tokenizer()
    sampling = Sampling(maxNewTokens=24, minNewTokens=2, responsesPerPrompt=32)

    def responses(*strings: str) -> list[Rollout]:
        client = VllmClient(
            http, sampling=sampling, seed=1, ends=[256], stops=StopStrings(tokenizer, strings)
        )
        work = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 32)
        return http.run(client.ask(target(tied), work, lambda: None)).rollouts()

    whole, stopped = responses(), 0
    pairs = {tokenizer.decode(list(response.tokens[5:7])) for response in whole}
    stops = StopStrings(tokenizer, sorted(pair for pair in pairs if len(pair) == 2 and "\ufffd" not in pair))
    cut = responses(*stops.strings)
    for response, unstopped in zip(cut, whole, strict=True):
        tokens = list(unstopped.tokens)
        ends = [n for n in range(3, len(tokens) + 1) if stops.ending((65, 66, 67), tokens[:n]) is not None]
        assert list(response.tokens) == tokens[: ends[0] if ends else None]
        assert len(response.logprobs) == len(response.tokens)
        assert response.finished == (bool(ends) or unstopped.finished)
        stopped += bool(ends)
    assert 3 < stopped < 32


@torch.no_grad()
def test_penalties_of_the_generator_are_those_of_the_trainer(tied, http, make_sync, models):
    model, penalties = models("tied", 1), Penalties(1.3, 0.5, 0.25)
    make_sync().send([target(tied)], lambda: weights(model), 1)
    client = VllmClient(http, sampling=Sampling(maxNewTokens=24), seed=1, ends=[256])
    prompt = torch.tensor([[65, 66, 67]])
    penalized = Penalized(penalties, prompt, torch.ones_like(prompt))
    tokens_by_penalties = {}
    for used in (penalties, NO_PENALTIES):
        work = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 1, 0.0, used)
        (response,) = http.run(client.ask(target(tied), work, lambda: None)).rollouts()
        tokens_by_penalties[used] = list(response.tokens)
    tokens = prompt
    for token in tokens_by_penalties[penalties]:
        logits = penalized(tokens, model(tokens).logits[:, -1])
        assert logits.argmax() == token
        tokens = torch.cat([tokens, torch.tensor([[token]])], dim=1)
    assert tokens_by_penalties[penalties] != tokens_by_penalties[NO_PENALTIES]


def test_a_response_is_finished_by_any_of_several_end_tokens(tied, http, make_sync, models):
    """Gemma's tokenizer, for example, names another end token than the end of a turn."""
    make_sync().send([target(tied)], lambda: weights(models("tied", 1)), 1)
    ends = (256, *range(0, 256, 8))
    sampling = Sampling(maxNewTokens=12, minNewTokens=2, responsesPerPrompt=16)
    client = VllmClient(http, sampling=sampling, seed=1, ends=ends)
    work = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 16)
    responses = http.run(client.ask(target(tied), work, lambda: None)).rollouts()
    for response in responses:
        assert not set(response.tokens[:-1]) & set(ends)
        assert response.finished == (response.tokens[-1] in ends)
        assert response.finished or len(response.tokens) == 12
        assert len(response.tokens) > 2
    assert {response.finished for response in responses} == {True, False}
    assert any(response.finished and response.tokens[-1] != 256 for response in responses)


def test_frames_hold_what_vllm_s_own_path_says_to_the_same_request(tied, http, make_sync, models):
    make_sync().send([target(tied)], lambda: weights(models("tied", 1)), 1)
    sampling = Sampling(maxNewTokens=70, responsesPerPrompt=3, temperature=0.7, topK=40)
    work = PartialRollout.begin(Prompt("0/1", (65, 66, 67), {}), 3)
    http.run(VllmClient(http, sampling=sampling, seed=1, ends=[256, 7]).ask(target(tied), work, lambda: None))
    body = {
        "model": "policy",
        "prompt": [65, 66, 67],
        "n": 3,
        "seed": request_seed(1, "0/1"),
        "logprobs": 0,
        "temperature": 0.7,
        "top_k": 40,
        "max_tokens": 70,
        "min_tokens": 0,
        "stop_token_ids": [256, 7],
    }
    body["return_token_ids"] = True
    choices = http.run(http.json("POST", f"{tied.address}/v1/completions", body, timeout=60))["choices"]
    assert [(list(r.tokens), list(r.logprobs), r.end) for r in work.responses] == [
        (c["token_ids"], list(array("f", c["logprobs"]["token_logprobs"])), c["finish_reason"])
        for c in choices
    ]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ((65,) * 100, "100 tokens and a response of up to 60 do not fit into a context of 128"),
        ((9999,), "9999"),
    ],
)
def test_a_prompt_that_the_engine_cannot_take_is_refused_and_says_why(prompt, says, tied, http):
    client = VllmClient(http, sampling=Sampling(maxNewTokens=60), seed=1, ends=[256])
    with pytest.raises(Refused, match=says):
        http.run(client.ask(target(tied), PartialRollout.begin(Prompt("0/3", prompt, {}), 2), lambda: None))


def test_a_prompt_that_is_given_up_is_aborted_by_the_engine(tied, http, make_sync, models):
    make_sync().send([target(tied)], lambda: weights(models("tied", 1)), 1)
    sampling = Sampling(maxNewTokens=120, minNewTokens=120, responsesPerPrompt=64)
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256])
    before, begun = generated(tied), threading.Event()
    work = PartialRollout.begin(Prompt("0/2", (65,), {}), 64)

    def idle() -> bool:
        """No token came for a second."""
        so_far = generated(tied)
        time.sleep(1)
        return generated(tied) == so_far > before

    with slow_steps(http, tied):
        request = http.start(client.ask(target(tied), work, begun.set))
        assert begun.wait(120)
        request.cancel()
        eventually(idle, "the engine is done")
    assert generated(tied) - before < 64 * 120
    assert serves(http, tied, models("tied", 1))


def generated(server) -> float:
    """Tokens that the engine has generated."""
    return in_metrics(server, "vllm:generation_tokens_total")


def in_metrics(server, name: str) -> float:
    lines = ask(server, "/metrics", {})[1].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def test_an_epoch_that_is_over_is_refused_and_the_next_send_recovers(tied, http, make_sync, models):
    sync = make_sync()
    mine = models("tied", 1)
    sync.send([target(tied)], lambda: weights(mine), 1)
    store = {"host": "127.0.0.1", "port": sync._store.port, "epoch": "0.0", "timeout_s": 5.0}
    late = {"init_info": store | {"secret": "of then", "rank_offset": 1, "world_size": 2}}
    with pytest.raises(HttpError, match=r"weight epoch 0\.0 is over"):
        http.run(http.json("POST", f"{tied.address}/init_weight_transfer_engine", late, timeout=120))
    assert serves(http, tied, mine)
    report = sync.send([target(tied)], lambda: weights(models("tied", 2)), 2)
    assert report.holders == (target(tied),)


@pytest.mark.parametrize("point", ["bucket:1", "before-commit", "committed"])
def test_a_trainer_that_dies_leaves_old_or_new_weights_serving_and_the_next_takes_over(
    point, tied, http, make_sync, models, folder, tmp_path
):
    old = models("tied", 1)
    sync = make_sync()
    sync.send([target(tied)], lambda: weights(old), 1)
    sync.close()
    log = tmp_path / "log"
    trainer = fork(dying_trainer.send, tied.address, folder / "tied-2", point, log=log)
    assert ended([trainer], 300, log) == [-signal.SIGKILL], log.read_text()
    assert not http.run(http.json("GET", f"{tied.address}/is_paused", timeout=120))["is_paused"]
    keeps_old = point != "committed"
    assert status(http, tied)["version"] == (1 if keeps_old else 99)
    assert serves(http, tied, old if keeps_old else models("tied", 2))
    if point == "bucket:1":  # until the next trainer comes it holds older weights than were sent
        eventually(lambda: status(http, tied)["failure"], "its worker notices that the broadcast broke")
        assert ask(tied, "/ready", {})[0] == 503
    else:
        assert ask(tied, "/ready", {})[0] == 200
    new = models("tied", 3)
    assert make_sync().send([target(tied)], lambda: weights(new), 5).holders == (target(tied),)
    assert serves(http, tied, new)


def test_a_generator_that_sleeps_answers_with_the_next_weights(biased, http, make_sync, models):
    """Requests that come meanwhile wait; the weights that it served are verified before it gives them up."""
    client = VllmClient(http, sampling=Sampling(maxNewTokens=8), seed=1, ends=[256])
    sync, work = make_sync(takes_turns=True), PartialRollout.begin(Prompt("0/0", (65,), {}), 4)
    assert sync.send([target(biased)], lambda: weights(models("biased", 1)), 1).holders == (target(biased),)
    assert serves(http, biased, models("biased", 1))
    assert sync.sleep([target(biased)]) == ("", {})
    assert sync.sleep([target(biased)]) == ("", {}), "once more changes nothing"
    assert sync.changed([target(biased)]) == ""
    now = status(http, biased)
    assert (now["version"], now["digest"]) == (None, None)
    running = http.start(client.ask(target(biased), work, lambda: None))
    assert sync.send([target(biased)], lambda: weights(models("biased", 2)), 2).holders == (target(biased),)
    running.result(120)
    assert {version for response in work.responses for version in response.versions} == {2}
    assert serves(http, biased, models("biased", 2))


@pytest.mark.parametrize("point", ["room", "bucket:1", "before-commit"])
def test_a_trainer_that_dies_while_a_generator_sleeps_leaves_it_to_the_next(
    point, tied, http, make_sync, models, folder, tmp_path
):
    sync = make_sync(takes_turns=True)
    sync.send([target(tied)], lambda: weights(models("tied", 1)), 1)
    sync.sleep([target(tied)])
    sync.close()
    log = tmp_path / "log"
    trainer = fork(dying_trainer.send, tied.address, folder / "tied-2", point, False, True, log=log)
    assert ended([trainer], 300, log) == [-signal.SIGKILL], log.read_text()
    sync = make_sync(takes_turns=True)
    assert sync.send([target(tied)], lambda: weights(models("tied", 3)), 5).holders == (target(tied),)
    assert serves(http, tied, models("tied", 3))


@pytest.mark.parametrize("token", [None, "", "wrong", "Basic " + TOKEN])
def test_nobody_gets_in_without_the_token(token, tied):
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = token if " " in token else f"Bearer {token}"
    paths = json.loads(ask(tied, "/openapi.json", {"Authorization": f"Bearer {TOKEN}"})[1])["paths"]
    assert {"/pause", "/update_weights", "/collective_rpc", "/v1/completions"} <= paths.keys()
    ours = ((GENERATE, ["post"]), ("/commit", ["post"]))
    for path, methods in [
        *paths.items(),
        *ours,
        ("/docs", ["get"]),
        ("/nowhere", ["get"]),
    ]:
        for method in methods:
            code, body = ask(tied, path, headers, method.upper())
            assert code == (200 if path in ("/health", "/metrics") else 401), (method, path, body)


def ask(server, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, bytes]:
    data = b"{}" if method == "POST" else None
    request = urllib.request.Request(server.address + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
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
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256])
    works = [PartialRollout.begin(Prompt(f"0/{i}", (40 + i,), {}), 1) for i in range(32)]
    members = {member.uid: member for member in (staying, ending)}
    future = start_round(
        http,
        client,
        works,
        [*members.values()],
        current=lambda: members,
        limits=Limits(16, 600),
        observer=Observer(arrived=lambda _: untied.process.terminate()),
    )
    outcome = future.result(240)
    assert outcome.unanswered == []
    assert [work for work, _ in outcome.results] == works
    untied.process.wait(240)  # nor does it wait for ever for who asked
