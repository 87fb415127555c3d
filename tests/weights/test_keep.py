"""New weights under responses that go on, in one real vLLM server: which version sampled which token."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby

import pytest
import torch
from tests.weights.support import weights
from tests.weights.test_serving import slow_steps, target

from rlhf_api.spec import Sampling
from rlhf_trainer.generation.vllm import VllmClient
from rlhf_trainer.generation.work import Response, Work
from rlhf_trainer.records import Prompt

pytestmark = pytest.mark.slow

PROMPT = (65, 66, 67)


class Swaps:
    """A server that gets new weights while it answers: version v is the model of seed v."""

    def __init__(self, server, http, make_sync, models) -> None:
        self.http, self.server, self.make_sync, self.models = http, server, make_sync, models
        self.sync(1)

    def sync(self, version: int, at_commit: Callable[[], object] = lambda: None) -> None:
        """`at_commit` is called right before the swap."""
        sync = self.make_sync(keep=True, fault=lambda point: point == "before-commit" and at_commit())
        sent = sync.send([target(self.server)], lambda: weights(self.models("tied", version)), version)
        assert sent.holders == (target(self.server),)

    def answer(self, client: VllmClient, count: int, versions: Sequence[int]) -> list[Response]:
        """The responses to one request, under which each of `versions` is swapped in at once after its first tokens
        came."""
        work, came = Work.begin(Prompt("0/0", PROMPT, {}), count), threading.Event()
        running: list[Future[Work]] = []

        def begin() -> None:
            running.append(self.http.start(client.ask(target(self.server), work, came.set)))
            assert came.wait(120)

        with slow_steps(self.http, self.server):
            self.sync(versions[0], begin)
            for version in versions[1:]:
                self.sync(version)
        assert running[0].result(120).whole, "in one stream, without an interruption"
        return work.responses

    @torch.no_grad()
    def logits(self, response: Response) -> torch.Tensor:
        """Of each token, by the model of its version, which reads the keys and values that those of earlier tokens have
        left: a version's first pass begins with the last token of the version before."""
        past, read, found = None, 0, []
        tokens = [*PROMPT, *response.tokens]
        for version, same in groupby(response.versions):
            end = (read or len(PROMPT) - 1) + len(list(same))
            fed = torch.tensor([tokens[read:end]])
            output = self.models("tied", version)(fed, past_key_values=past, use_cache=True)
            found.append(output.logits[0, len(PROMPT) - 1 if past is None else 0 :])
            past, read = output.past_key_values, end
        return torch.cat(found)


@pytest.fixture
def swaps(tied, http, make_sync, models) -> Swaps:
    return Swaps(tied, http, make_sync, models)


def chosen(logits: torch.Tensor, response: Response) -> torch.Tensor:
    """Log-probabilities of its tokens, where the end token could not be sampled."""
    logits[:, 256] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.tensor(response.tokens)[:, None])[:, 0]


@pytest.mark.parametrize("interval", [1, 64])
def test_a_response_goes_on_in_its_stream_and_each_token_bears_the_version_that_sampled_it(interval, swaps):
    """The last tokens of a version are waiting to be sent when it is replaced, or not."""
    sampling = Sampling(maxNewTokens=100, minNewTokens=100, answersPerPrompt=8)
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
