"""Options of a real vLLM server with a trainer's weights: those of docs/reference/engine-arguments.md agree with the
policy, and responses of speculation fail."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
import torch
from tests.support.servers import vllm_server
from tests.support.servers.vllm_server import Server
from tests.unit.trainer.weights.on_vllm.test_serving import of_model
from tests.unit.trainer.weights.support import TOKEN, generator, weights

from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.dispatch.outcomes import Failed
from rlhf_trainer.maths.agreement import agreement
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Prompt

pytestmark = pytest.mark.slow

TRIED = (
    *(
        "--load-format",
        "dummy",
        "--block-size",
        "32",
        "--num-gpu-blocks-override",
        "64",
        "--max-num-seqs",
        "8",
    ),
    *("--max-num-batched-tokens", "1024", "--max-num-scheduled-tokens", "512", "--async-scheduling"),
    *(
        "--scheduling-policy",
        "priority",
        "--disable-cascade-attn",
        "--stream-interval",
        "4",
        "--shutdown-timeout",
        "1",
    ),
    *(
        "--disable-log-stats",
        "--enable-log-requests",
        "--uvicorn-log-level",
        "warning",
        "--no-enable-prefix-caching",
    ),
    *("--compilation-config", json.dumps({"mode": 0})),
)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
Serve = Callable[..., Server]


@pytest.fixture
def serve(folder) -> Iterator[Serve]:
    """Starts a server of `tied-0` with these options."""
    started = list[Server]()

    def start(*arguments: str) -> Server:
        server = vllm_server.launch(
            folder / "tied-0", folder / "options.log", token=TOKEN, arguments=arguments
        )
        started.append(server)
        return server.wait_ready()

    yield start
    for server in started:
        server.stop()


def ask_all(server: Server, http, make_sync, policy) -> list[Future[PartialRollout]]:
    """Requests for a response to each of 24 prompts with repetitions, once the server has the weights."""
    target = generator(0, server.address)
    assert make_sync().send([target], lambda: weights(policy), 1).holders == (target,)
    client = VllmClient(http, sampling=Sampling(maxNewTokens=60), seed=1, ends=[256])
    works = [PartialRollout.begin(Prompt(f"0/{i}", (65, 66, 60 + i) * 5, {}), 1) for i in range(24)]
    return [http.start(client.ask(target, work, lambda: None)) for work in works]


def test_tried_options_agree_with_the_policy(serve, http, make_sync, models):
    policy = models("tied", 1)
    futures = ask_all(serve(*TRIED), http, make_sync, policy)
    responses = [response for each in futures for response in each.result(300).rollouts()]
    computed = torch.cat([of_model(policy, response) for response in responses])
    sampled = torch.tensor([number for response in responses for number in response.logprobs])
    assert float(agreement(computed, sampled, len(sampled))["logprob_difference_max"]) < 1e-4


def test_responses_of_speculation_whose_log_probabilities_are_not_finite_fail(serve, http, make_sync, models):
    """No manifest may have the option: `tests/unit/trainer/roles/test_generator_role.py`."""
    futures = ask_all(serve("--speculative-config", json.dumps(NGRAM)), http, make_sync, models("tied", 1))
    errors = [each.exception(300) for each in futures]
    assert {type(error) for error in errors if error} == {Failed}
    assert "a log-probability is not finite" in str(next(filter(None, errors)))
