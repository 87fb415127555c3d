"""The experts that a real vLLM chose come with its responses, and the trainer replays them."""

import threading
from dataclasses import replace

import pytest
import torch
from tests.unit.trainer.weights.on_vllm.test_keep import PROMPT, Swaps
from tests.unit.trainer.weights.on_vllm.test_serving import slow_steps, target
from tests.unit.trainer.weights.support import weights
from torch import Tensor

from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.dispatch.outcomes import Interrupted
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.forward.routers import Routers
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.rollout.responses import pack
from rlhf_trainer.tensors.expert_rows import pack_rows
from rlhf_trainer.tensors.records import Prompt, Rollout

pytestmark = pytest.mark.slow


def client(http, model, *, tokens: int, least: int = 0) -> VllmClient:
    sampling = Sampling(maxNewTokens=tokens, minNewTokens=least)
    return VllmClient(http, sampling=sampling, seed=1, ends=[256], experts=Routers.of(model).shape)


@torch.no_grad()
def chosen_by(model, tokens: list[int], **more) -> Tensor:
    """The trainer's own choices for all tokens but the last, in the order of the experts: [T - 1, L, K]."""
    with Routers.of(model).recording() as routings:
        model(torch.tensor([tokens[:-1]]), **more)
    return torch.stack([each.chosen for each in routings], dim=1).sort().values


def rows(response: Rollout | Response) -> Tensor:
    return torch.from_numpy(response.experts.whole()).sort().values


def difference(model, responses: list[Rollout], routing: Tensor | None) -> Tensor:
    """Of the trainer's log-probabilities from the generator's, at each token."""
    sequences = replace(pack(responses), routing=routing)
    forward = Forward(model, 512, 257, routers=Routers.of(model))
    logprobs = infer(forward, sequences, ResponseLogprobs(), sequences.response_lengths)
    return (logprobs - torch.tensor([each for r in responses for each in r.logprobs])).abs()


def test_training_replays_the_experts_that_the_generator_chose(experts, http, make_sync, models):
    """They are the trainer's own in float32, of prompts from the cache too; not in bfloat16, where log-probabilities
    agree better if they are replayed."""
    model, responses = models("experts", 1), list[Rollout]()
    make_sync().send([target(experts)], lambda: weights(model), 1)
    asker = client(http, model, tokens=24)
    for place, length in enumerate((1, 5, 40, 40)):
        work = PartialRollout.begin(Prompt(f"0/{place}", tuple(range(60, 60 + length)), {}), 8)
        responses += http.run(asker.ask(target(experts), work, lambda: None)).rollouts()
    for response in responses:
        assert torch.equal(rows(response), chosen_by(model, [*response.prompt.tokens, *response.tokens]))
    routing = pack_rows([(r.experts, len(r.prompt.tokens) + len(r.tokens)) for r in responses])
    assert difference(model, responses, routing).max() < 1e-4
    rounded = models("experts", 1).bfloat16()
    own = [chosen_by(rounded, [*r.prompt.tokens, *r.tokens]) for r in responses]
    replaced = torch.cat([(a != rows(r)).any(-1).any(-1) for a, r in zip(own, responses, strict=True)])
    assert 0 < replaced.float().mean() < 0.5
    without, with_replay = (difference(rounded, responses, each) for each in (None, routing))
    assert with_replay.mean() < without.mean()
    assert with_replay.max() < without.max() / 2


@torch.no_grad()
def test_new_weights_under_a_response_leave_the_experts_of_its_earlier_tokens(
    experts, http, make_sync, models
):
    swaps = Swaps(experts, "experts", http, make_sync, models)
    for response in swaps.answer(client(http, models("experts", 1), tokens=60, least=60), 4, [2, 3]):
        assert sorted({*response.versions}) == [1, 2, 3]
        begin = response.versions.index(2)
        read = [*PROMPT, *response.tokens][: len(PROMPT) + begin]
        earlier, later = rows(response).split([len(read) - 1, 60 - begin])
        assert torch.equal(earlier, chosen_by(models("experts", 1), read))
        assert not torch.equal(
            later, chosen_by(models("experts", 1), [*PROMPT, *response.tokens])[len(read) - 1 :]
        )


def test_a_response_that_new_weights_interrupt_keeps_the_experts_of_its_tokens(
    experts, http, make_sync, models
):
    sync, model = make_sync(), models("experts", 1)
    sync.send([target(experts)], lambda: weights(model), 1)
    work, came, asker = (
        PartialRollout.begin(Prompt("0/0", PROMPT, {}), 4),
        threading.Event(),
        client(http, model, tokens=60, least=60),
    )
    with slow_steps(http, experts):
        request = http.start(asker.ask(target(experts), work, came.set))
        assert came.wait(120)
        sync.send([target(experts)], lambda: weights(models("experts", 2)), 2)
    with pytest.raises(Interrupted):
        request.result(120)
    so_far = [rows(response) for response in work.responses]
    http.run(asker.ask(target(experts), work, lambda: None))
    for response, before in zip(work.responses, so_far, strict=True):
        assert {*response.versions} == {1, 2}
        assert torch.equal(rows(response)[: len(before)], before)
        assert torch.equal(before, chosen_by(model, [*PROMPT, *response.tokens])[: len(before)])
