"""A real vLLM server of a policy that reads images: its responses have the trainer's tokens, pixels and weights."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.servers import vllm_server
from tests.support.servers.vllm_server import Server
from tests.support.tiny.vision import tiny_vision, write_rows
from tests.unit.trainer.weights.support import TOKEN, PartlyTrained, generator, status, weights
from transformers import AutoImageProcessor, PreTrainedModel

from rlhf_api.contract.run import Member
from rlhf_api.sections.data import Data, Source
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.data.dataset import open_dataset
from rlhf_trainer.data.prompts import prompts
from rlhf_trainer.data.vision import ImageReader
from rlhf_trainer.dispatch.outcomes import Refused
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.pretrained.load import load_policy, load_tokenizer
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.images import Images
from rlhf_trainer.tensors.records import Prompt, Sequences
from rlhf_trainer.transport.http import HttpClient

pytestmark = pytest.mark.slow
ARGUMENTS = ("--mm-processor-cache-gb", "0", "--no-mm-device-do-normalize")
"""Those of the generator's own that are of images."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return tiny_vision(tmp_path_factory.mktemp("vision") / "policy")


@pytest.fixture(scope="module")
def requested(policy, tmp_path_factory) -> list[Prompt]:
    """Prompts with an image, without, with two, and with another; the last one has the first one's tokens."""
    folder = tmp_path_factory.mktemp("rows")
    rows = [*open_dataset([Source(path=str(write_rows(folder)))], "prompts")]
    processor = AutoImageProcessor.from_pretrained(policy, backend="pil")
    token = load_policy(str(policy), torch.float32).config.image_token_id
    reader, places = ImageReader(processor, token, 2), [(0, i) for i in range(len(rows))]
    made = prompts(rows, places, load_tokenizer(str(policy)), Data(), reader=reader)
    (picture,) = made[0].pictures
    black = replace(picture, patches=torch.zeros_like(picture.patches))
    return [*made, replace(made[0], id="0/9", pictures=(black,))]


@pytest.fixture(scope="module")
def server(policy, tmp_path_factory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    server = vllm_server.launch(policy, log, token=TOKEN, arguments=ARGUMENTS)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def test_responses_agree_with_the_trainer_and_follow_new_weights(policy, requested, server, http, make_sync):
    model = load_policy(str(policy), torch.float32).eval()
    client = VllmClient(http, sampling=Sampling(maxNewTokens=8), seed=1, ends=[1])
    sync, target = make_sync(), generator(0, server.address)
    for version in (1, 2):  # the same images, of which nothing may be kept
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter += 0.02 * torch.randn(parameter.shape) * ("visual" in name)
        report = sync.send([target], lambda: weights(model), version)
        assert report.holders == (target,), report.lost
        assert status(http, server)["digest"] == report.digest
        assert_agrees(http, client, target, requested, model)
        assert sync.changed([target]) == ""


def test_the_frozen_part_that_reads_images_travels_once(policy, requested, server, http, make_sync):
    trained = PartlyTrained(load_policy(str(policy), torch.float32).eval(), "visual")
    visual = sum(tensor.nbytes for _, tensor in trained.base_tensors())
    client = VllmClient(http, sampling=Sampling(maxNewTokens=8), seed=1, ends=[1])
    sync, target = make_sync(), generator(0, server.address)
    whole = sync.send([target], trained.named_tensors, 4)
    for version in (5, 6):
        trained.train(version)
        report = sync.send([target], trained.version_tensors, version, base=trained.base)
        assert report.holders == (target,), report.lost
        assert_agrees(http, client, target, requested, trained.unwrapped)
        assert sync.changed([target]) == ""
        assert (report.base_bytes > 0) == (version == 5)
        assert report.bytes <= whole.bytes - visual


def assert_agrees(
    http: HttpClient,
    client: VllmClient,
    target: Member,
    requested: list[Prompt],
    model: PreTrainedModel,
) -> None:
    """Responses are sampled with the log-probabilities of the model."""
    works = [PartialRollout.begin(prompt, 2) for prompt in requested]
    for work in works:
        http.run(client.ask(target, work, lambda: None))
    made = [rollout for work in works for rollout in work.rollouts()]
    sequences = Sequences.pack([(each.prompt.tokens, each.tokens) for each in made])
    sequences = replace(sequences, images=Images.of([each.prompt.pictures for each in made]))
    with torch.no_grad():
        own = infer(Forward(model, 512, 0), sequences, ResponseLogprobs(), sequences.response_lengths)
    sampled = torch.cat([torch.tensor(each.logprobs) for each in made])
    torch.testing.assert_close(sampled, own, rtol=0, atol=1e-5)


def test_images_that_are_not_those_of_the_tokens_are_refused(requested, server, http, make_sync, policy):
    model, target = load_policy(str(policy), torch.float32), generator(0, server.address)
    assert make_sync().send([target], lambda: weights(model), 3).holders == (target,)
    client = VllmClient(http, sampling=Sampling(maxNewTokens=8), seed=1, ends=[1])
    (picture,) = requested[0].pictures
    for pictures in ((replace(picture, start=picture.start + 1),), (picture, picture)):
        work = PartialRollout.begin(replace(requested[0], pictures=pictures), 1)
        with pytest.raises(Refused, match="images of a prompt need"):
            http.run(client.ask(target, work, lambda: None))
