"""New weights under responses that go on, in one real vLLM server: which version sampled which token."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path

import aiohttp
import pytest
import torch
from tests.support.forked.forks import fork
from tests.support.kubernetes.kube import eventually
from tests.support.tiny.models import byte_tokenizer
from tests.unit.trainer.weights.conftest import serving
from tests.unit.trainer.weights.on_vllm import dying_trainer
from tests.unit.trainer.weights.on_vllm.test_serving import call, slow_steps, target
from tests.unit.trainer.weights.support import status, weights

from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.http import HttpError

pytestmark = pytest.mark.slow

PROMPT = (65, 66, 67)


class Swaps:
    """A server that gets new weights while it answers: version v is the model of seed v."""

    def __init__(self, server, kind: str, http, make_sync, models) -> None:
        self.http, self.server, self.make_sync = http, server, make_sync
        self.model = lambda version: models(kind, version)
        self.sync(1)

    def sync(self, version: int, at_commit: Callable[[], object] = lambda: None) -> None:
        """`at_commit` is called right before the swap."""
        sync = self.make_sync(keep=True, fault=lambda point: point == "before-commit" and at_commit())
        sent = sync.send([target(self.server)], lambda: weights(self.model(version)), version)
        assert sent.holders == (target(self.server),)

    def answer(self, client: VllmClient, count: int, versions: Sequence[int]) -> list[Response]:
        """The responses to one request, under which each of `versions` is swapped in at once after its first tokens
        came."""
        work = PartialRollout.begin(Prompt("0/0", PROMPT, {}), count)
        requests: list[Future[PartialRollout]] = []
        with slow_steps(self.http, self.server):
            self.sync(versions[0], lambda: requests.append(self.ask(client, work)))
            for version in versions[1:]:
                self.sync(version)
        assert requests[0].result(120).is_complete, "in one stream, without an interruption"
        return work.responses

    def ask(self, client: VllmClient, work: PartialRollout) -> "Future[PartialRollout]":
        """A request whose first tokens have come."""
        came = threading.Event()
        request = self.http.start(client.ask(target(self.server), work, came.set))
        assert came.wait(120)
        return request

    @torch.no_grad()
    def logits(self, response: Response) -> torch.Tensor:
        """Of each token, by the model of its version, which reads the keys and values that those of earlier tokens have
        left: a version's first pass begins with the last token of the version before."""
        past, read, parts = None, 0, []
        tokens = [*PROMPT, *response.tokens]
        for version, same in groupby(response.versions):
            end = (read or len(PROMPT) - 1) + len(list(same))
            fed = torch.tensor([tokens[read:end]])
            output = self.model(version)(fed, past_key_values=past, use_cache=True)
            parts.append(output.logits[0, len(PROMPT) - 1 if past is None else 0 :])
            past, read = output.past_key_values, end
        return torch.cat(parts)


@pytest.fixture
def swaps(tied, http, make_sync, models) -> Swaps:
    return Swaps(tied, "tied", http, make_sync, models)


def chosen(logits: torch.Tensor, response: Response) -> torch.Tensor:
    """Log-probabilities of its tokens, where the end token could not be sampled."""
    logits[:, 256] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.tensor(response.tokens)[:, None])[:, 0]


@pytest.mark.parametrize("interval", [1, 64])
def test_a_response_goes_on_in_its_stream_and_each_token_bears_the_version_that_sampled_it(interval, swaps):
    """The last tokens of a version are waiting to be sent when it is replaced, or not."""
    sampling = Sampling(maxNewTokens=100, minNewTokens=100, responsesPerPrompt=8)
    client = VllmClient(swaps.http, sampling=sampling, seed=1, ends=[256], stream_interval=interval)
    for response in swaps.answer(client, 8, [2, 3]):
        assert len(response.tokens) == len(response.versions) == 100
        runs = [(version, len(list(same))) for version, same in groupby(response.versions)]
        assert [version for version, _ in runs] == [1, 2, 3]
        moved = Response(response.tokens, response.logprobs, response.versions[1:] + response.versions[-1:])
        off = [
            (chosen(swaps.logits(each), each) - torch.tensor(each.logprobs)).abs()
            for each in (response, moved)
        ]
        assert off[0].max() < 1e-4
        assert off[1].max() > 1e-2, "if the last token of each version were of the next one"


def test_stop_strings_and_sampling_masks_stand_new_weights(swaps):
    """Tokens are detokenized as they come, and masks divided with their tokens."""
    sampling = Sampling(maxNewTokens=80, minNewTokens=2, responsesPerPrompt=16, temperature=0.8, topK=20)
    stops = StopStrings(byte_tokenizer(), [chr(code) for code in range(40, 120, 10)])
    client = VllmClient(swaps.http, sampling=sampling, seed=1, ends=[256], stops=stops)
    stopped = 0
    for response in swaps.answer(client, 16, [2]):
        assert len(response.tokens) == len(response.versions) == len(response.kept_counts)
        logits, at = swaps.logits(response) / 0.8, 0
        for place, count in enumerate(response.kept_counts):
            candidates = [response.tokens[place], *response.kept[at : at + count]]
            logprob = logits[place, candidates].log_softmax(-1)[0]
            assert abs(logprob.item() - response.logprobs[place]) < 1e-4
            at += count
        assert at == len(response.kept)
        ends = [
            n
            for n in range(3, len(response.tokens) + 1)
            if stops.ending(PROMPT, response.tokens[:n]) is not None
        ]
        assert set(ends) <= {len(response.tokens)}
        stopped += bool(ends) and {*response.versions} == {1, 2}
    assert stopped, "by a string, with new weights"


def test_replies_of_vllm_s_own_paths_end_before_new_weights(swaps):
    """They name one version for all of their tokens."""
    body = {"model": "policy", "prompt": list(PROMPT), "max_tokens": 100, "ignore_eos": True}
    url = f"{swaps.server.address}/v1/completions"
    work = PartialRollout.begin(Prompt("0/0", PROMPT, {}), 1)
    client = VllmClient(swaps.http, sampling=Sampling(maxNewTokens=100, minNewTokens=100), seed=1, ends=[256])
    requests: list[Future] = []

    def begin() -> None:
        requests.append(swaps.http.start(swaps.http.json("POST", url, body, timeout=100)))
        requests.append(swaps.ask(client, work))

    with slow_steps(swaps.http, swaps.server):
        swaps.sync(2, begin)
    assert requests[0].result(120)["choices"][0]["finish_reason"] == "abort"
    assert {*requests[1].result(120).responses[0].versions} == {1, 2}, "ours goes on"


@torch.no_grad()
def test_a_fresh_prompt_does_not_reuse_keys_and_values_of_earlier_weights(folder, http, make_sync, models):
    """Those of a system prompt, say, with which every prompt begins: they would grow older without end."""
    for server in serving(folder, "tied", "--block-size", "32"):
        swaps = Swaps(server, "tied", http, make_sync, models)
        client = VllmClient(http, sampling=Sampling(maxNewTokens=8, minNewTokens=8), seed=1, ends=[256])
        prompt = tuple(range(100))
        for version in (1, 2):
            swaps.sync(version)
            work = PartialRollout.begin(Prompt("0/0", prompt, {}), 1)
            (response,) = http.run(client.ask(target(server), work, lambda: None)).responses
            logits = swaps.model(version)(torch.tensor([[*prompt, *response.tokens]])).logits[0, 99:-1]
            assert (chosen(logits, response) - torch.tensor(response.logprobs)).abs().max() < 1e-4
            assert {*response.versions} == {version}


def held(swaps: Swaps, file: Path) -> None:
    """The next swap waits for as long as there is this file."""
    call(swaps.http, swaps.server, "hold_swap", str(file))


def test_a_trainer_that_dies_during_the_swap_leaves_no_response_frozen(swaps, folder, tmp_path):
    file, work = tmp_path / "held", PartialRollout.begin(Prompt("0/0", PROMPT, {}), 4)
    client = VllmClient(swaps.http, sampling=Sampling(maxNewTokens=100, minNewTokens=100), seed=1, ends=[256])
    meeting, log = tmp_path / "meeting", tmp_path / "log"
    sent = (swaps.server.address, folder / "tied-2", "", True, False, meeting)
    trainer = fork(dying_trainer.send, *sent, log=log)
    eventually(meeting.exists, "its weights are there")
    with slow_steps(swaps.http, swaps.server):
        request = swaps.ask(client, work)
        held(swaps, file)
        meeting.unlink()
        eventually(file.exists, "they are being swapped in")
        trainer.kill()
        trainer.join()
        file.unlink()
    for response in request.result(120).responses:
        assert [version for version, _ in groupby(response.versions)] == [1, 99]
        assert len(response.tokens) == 100
    assert status(swaps.http, swaps.server)["version"] == 99


def test_a_response_goes_on_elsewhere_where_its_generator_dies_during_the_swap(
    untied, swaps, http, make_sync, models, tmp_path
):
    """From the last token that it has sent, of the version before."""
    dying, file = Swaps(untied, "untied", http, make_sync, models), tmp_path / "held"
    work = PartialRollout.begin(Prompt("0/0", PROMPT, {}), 2)
    sampling = Sampling(maxNewTokens=50, minNewTokens=50)
    client = VllmClient(http, sampling=sampling, seed=1, ends=[256], stream_interval=1)
    swaps.sync(2)
    requests: list[Future[PartialRollout]] = []

    def begin() -> None:
        requests.append(dying.ask(client, work))
        held(dying, file)

    def kill() -> None:
        eventually(file.exists, "it is paused")
        untied.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    call(http, untied, "pace", 0.5)
    sync = make_sync(keep=True, fault=lambda point: point == "before-commit" and begin())
    assert sync.send([target(untied)], lambda: weights(models("untied", 2)), 2).holders == ()
    killing.join()
    with pytest.raises((aiohttp.ClientError, HttpError, OSError)):
        requests[0].result(120)
    before = [len(response.tokens) for response in work.responses]
    assert {version for response in work.responses for version in response.versions} == {1}
    http.run(client.ask(target(swaps.server), work, lambda: None))
    for count, response in zip(before, work.responses, strict=True):
        assert 0 < count < 50
        assert list(response.versions) == [1] * count + [2] * (50 - count)
