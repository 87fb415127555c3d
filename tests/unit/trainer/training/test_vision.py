"""A policy that reads images: its log-probabilities are Transformers' own, packed too; what is frozen stays."""

import json
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.support.tiny.models import byte_tokenizer
from tests.support.tiny.vision import TEMPLATE, tiny_vision, write_rows
from tests.unit.trainer.replay.ppo_worker import Snapshot
from tests.unit.trainer.training.running import RANKS, SAMPLED, low_tokens
from tests.unit.trainer.training.saving.test_snapshot_export import assert_same, save
from tests.unit.trainer.training.tuned import fine_tuned, train
from transformers import AutoImageProcessor, AutoModelForImageTextToText, PreTrainedModel

from rlhf_api.contract.run import ExportRequest
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import Data, Source
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.checkpoint.rng import restore_generators
from rlhf_trainer.data.dataset import open_dataset
from rlhf_trainer.data.prompts import prompts
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.data.vision import ImageReader
from rlhf_trainer.export.snapshot import export_snapshot
from rlhf_trainer.local_generation.sampler import generate_batch, sampling_of_the_job_alone
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.pretrained.load import load_policy, load_tokenizer
from rlhf_trainer.ops.datasets import given_columns
from rlhf_trainer.rollout.in_flight.saved_responses import BLOB
from rlhf_trainer.scoring.messages import pack, unpack
from rlhf_trainer.tensors.images import Images
from rlhf_trainer.tensors.records import Prompt, Sequences
from rlhf_trainer.transport.wire import decode, encode


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return tiny_vision(tmp_path_factory.mktemp("vision") / "policy")


def test_log_probabilities_are_those_of_transformers_padded_and_packed(policy, tmp_path):
    model, tokenizer = load_policy(str(policy), torch.float32).eval(), load_tokenizer(str(policy))
    processor = AutoImageProcessor.from_pretrained(policy, backend="pil")
    token = model.config.image_token_id
    rows = [*open_dataset([Source(path=str(write_rows(tmp_path)))], "responses")]
    columns, _ = given_columns("responses", rows, tokenizer, Data(), ImageReader(processor, token, 2))
    sequences, expected = columns.sequences, []
    for i, row in enumerate(rows):
        ids, images = sequences.row(i)[None], {}
        if row.images:
            images = dict(processor(images=[Image.open(file) for file in row.images], return_tensors="pt"))
            images["mm_token_type_ids"] = (ids == token).int()
        with torch.no_grad():
            logits = model(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **images
            ).logits
        start = int(sequences.prompt_lengths[i])
        chosen = ids[0, start:, None]
        expected.append(logits[0, start - 1 : -1].log_softmax(-1).gather(1, chosen)[:, 0])
    read, sizes = ResponseLogprobs(), sequences.response_lengths
    with torch.no_grad():
        padded = infer(Forward(model, 512, 0), sequences, read, sizes)
        forward = Forward.choose(model, 512, 0, "packed")
        packed = infer(forward, sequences, read, sizes)
    assert forward.packed
    assert len(forward.plan(sequences)[0]) == 1, "all in one row, without padding"
    torch.testing.assert_close(padded, torch.cat(expected), rtol=0, atol=1e-5)
    torch.testing.assert_close(packed, torch.cat(expected), rtol=0, atol=1e-5)


def tuned(folder: Path, policy: Path, steps: int, *overrides: str):
    """The policy after some of four steps of fine-tuning on the rows of `write_rows`; and its task."""
    folder.mkdir(exist_ok=True)
    rows = write_rows(folder)
    rows = rows.rename(folder / "images.jsonl")
    given = (f"spec.data.train=[{rows}]", f"spec.data.chatTemplate={json.dumps(TEMPLATE)}", "spec.steps=4")
    ctx, task = fine_tuned(folder, policy, steps, *given, "spec.data.promptsPerStep=2", *overrides)
    return ctx, task


def parameters(task) -> dict[str, torch.Tensor]:
    (model,) = task._learner.models.values()
    return {name: tensor.detach().clone() for name, tensor in model.unwrapped.state_dict().items()}


TRAINED = "spec.model.trainVision=true"


@pytest.mark.parametrize(
    "overrides", [(), (TRAINED,), (TRAINED, "spec.trainer.deepspeed.zero_optimization.stage=1")]
)
def test_the_part_that_reads_images_is_frozen_unless_the_job_trains_it(overrides, policy, tmp_path):
    before = load_policy(str(policy), torch.float32).state_dict()
    _, task = tuned(tmp_path, policy, 4, *overrides)
    changed = {name for name, tensor in parameters(task).items() if not torch.equal(tensor, before[name])}
    assert any(".language_model." in name for name in changed)
    assert any(".visual." in name for name in changed) == bool(overrides)


@pytest.mark.parametrize("overrides", [(), (TRAINED,)])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(overrides, policy, tmp_path):
    _, whole = tuned(tmp_path / "whole", policy, 4, *overrides)
    _, stopped = tuned(tmp_path / "stopped", policy, 2, *overrides)
    snapshot = Snapshot(stopped, RANKS, 2)
    _, resumed = tuned(tmp_path / "resumed", policy, 0, *overrides)
    resumed.restore(snapshot)
    train(resumed, (2, 3))
    one, other = parameters(whole), parameters(resumed)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_checkpoint_is_refused_with_other_frozen_weights(policy, tmp_path):
    _, stopped = tuned(tmp_path / "stopped", policy, 1)
    snapshot = Snapshot(stopped, RANKS, 1)
    other = tmp_path / "other"
    shutil.copytree(policy, other)
    model = load_policy(str(policy), torch.float32)
    model.model.visual.pos_embed.weight.data += 1
    model.save_pretrained(other)
    for start, overrides in ((other, ()), (policy, (TRAINED,))):
        _, resumed = tuned(tmp_path / "resumed", start, 0, *overrides)
        with pytest.raises(
            InvalidJob, match=r"spec.model.policy: the checkpoint was saved with other frozen weights"
        ):
            resumed.restore(snapshot)


def test_the_exported_model_is_loaded_and_generates_and_is_the_one_of_the_store(policy, tmp_path):
    ctx, task = tuned(tmp_path, policy, 4)
    store = save(tmp_path / "store", task, 4)
    task.export(4)
    export_snapshot(ExportRequest(store=store, step=4, out=str(tmp_path / "out")))
    assert_same(tmp_path / "out", ctx.workdir / "policy")
    folder = ctx.workdir / "policy"
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert all(torch.equal(tensor, parameters(task)[name]) for name, tensor in model.state_dict().items())
    processor, tokenizer = (
        AutoImageProcessor.from_pretrained(folder, backend="pil"),
        load_tokenizer(str(folder)),
    )
    made = processor(images=[Image.open(tmp_path / "0.png")], return_tensors="pt")
    token = model.config.image_token_id
    ids = torch.tensor(
        [[*tokenizer("user: ")["input_ids"], *[token] * 4, *tokenizer("how many?")["input_ids"]]]
    )
    generated = model.generate(
        input_ids=ids, **made, mm_token_type_ids=(ids == token).int(), max_new_tokens=3
    )
    assert generated.shape[1] > ids.shape[1]


@pytest.fixture
def requested(policy, tmp_path) -> tuple[PreTrainedModel, list[Prompt]]:
    """A model, and prompts with an image, without, with two, and with another; the last has the first one's tokens."""
    model, tokenizer = load_policy(str(policy), torch.float32).eval(), load_tokenizer(str(policy))
    processor = AutoImageProcessor.from_pretrained(policy, backend="pil")
    rows = [*open_dataset([Source(path=str(write_rows(tmp_path)))], "prompts")]
    Image.new("RGB", (16, 16)).save(tmp_path / "black.png")
    rows.append(rows[0].model_copy(update={"images": [str(tmp_path / "black.png")]}))
    reader = ImageReader(processor, model.config.image_token_id, 2)
    made = prompts(rows, [(0, i) for i in range(5)], tokenizer, Data(), reader=reader)
    assert made[0].tokens == made[4].tokens
    return model, made


def own_logprobs(model, rollouts) -> torch.Tensor:
    """The trainer's log-probabilities of (prompt, tokens of its response)."""
    sequences = Sequences.pack([(prompt.tokens, tokens) for prompt, tokens in rollouts])
    sequences = replace(sequences, images=Images.of([prompt.pictures for prompt, _ in rollouts]))
    with torch.no_grad():
        return infer(Forward(model, 512, 0), sequences, ResponseLogprobs(), sequences.response_lengths)


def test_responses_to_images_have_the_log_probabilities_of_the_trainer(requested):
    model, made = requested
    each = [prompt for prompt in made for _ in range(3)]
    request, stops = SamplingRequest(Sampling(maxNewTokens=8)), StopStrings(byte_tokenizer(), ())
    with torch.no_grad(), sampling_of_the_job_alone(model):
        sampled = generate_batch(model, each, request, [1], stops, 0, threading.Event())
    tokens = [response.tokens.tolist() for response in sampled]
    expected = own_logprobs(model, list(zip(each, tokens, strict=True)))
    sampled_logprobs = torch.cat([response.logprobs for response in sampled])
    torch.testing.assert_close(sampled_logprobs, expected, rtol=0, atol=1e-5)


def test_a_sampled_token_of_images_is_one_like_others(requested):
    model, (prompt, *_) = requested
    token, (picture,) = model.config.image_token_id, prompt.pictures
    ids, response = torch.tensor([prompt.tokens]), [token, 5, token, 7]
    images = {"pixel_values": picture.patches, "image_grid_thw": torch.tensor([picture.grid])}
    with torch.no_grad():
        output = model(input_ids=ids, **images, mm_token_type_ids=(ids == token).int(), use_cache=True)
        logits = [output.logits[0, -1]]
        for sampled in response[:-1]:
            output = model(input_ids=torch.tensor([[sampled]]), past_key_values=output.past_key_values)
            logits.append(output.logits[0, -1])
    expected = torch.stack(logits).log_softmax(-1)[range(4), response]
    torch.testing.assert_close(own_logprobs(model, [(prompt, response)]), expected, rtol=0, atol=1e-5)


def rewarded(sequences, rows):
    """The reward: that of responses with other tokens; a row's images are there."""
    assert len(rows) == len(sequences)
    assert {len(row.get("images", ())) for row in rows} <= {0, 1, 2}
    return low_tokens(sequences, rows)


def reinforced(folder: Path, policy: Path, steps: int, *overrides: str):
    """The policy after some of four steps of GRPO on the prompts of `write_rows`."""
    folder.mkdir(exist_ok=True)
    rows = write_rows(folder).rename(folder / "images.jsonl")
    given = (f"spec.data.train=[{rows}]", f"spec.data.chatTemplate={json.dumps(TEMPLATE)}", "spec.steps=4")
    requested = ("spec.data.promptsPerStep=4", "spec.grpo={minibatchSize: 8, klCoefficient: 0.1}", *SAMPLED)
    nodes = {"score": rewarded, "reference_logprobs": partial(of_served, policy)}
    return fine_tuned(folder, policy, steps, *given, *requested, *overrides, algorithm="grpo", nodes=nodes)


def of_served(policy: Path, sequences, _rows):
    """The reply of the reference role to the message that it is sent."""
    model = load_policy(str(policy), torch.float32).eval()
    there = unpack(decode(encode(*pack(sequences), compress=True)))
    return infer(Forward(model, 512, 0), there, ResponseLogprobs(), there.response_lengths)


def test_a_policy_learns_by_rewards_of_responses_to_images(policy, tmp_path):
    before = load_policy(str(policy), torch.float32).state_dict()
    _, task = reinforced(tmp_path, policy, 1)
    columns = task._buffer._retained[-1].episode.columns
    assert columns.sequences.images.counts.unique().numel() > 1
    torch.testing.assert_close(columns["reference_logprobs"], columns["sampled_logprobs"], rtol=0, atol=1e-5)
    changed = {name for name, tensor in parameters(task).items() if not torch.equal(tensor, before[name])}
    assert changed
    assert not any(".visual." in name for name in changed)


def test_a_run_that_was_stopped_before_it_trained_reads_the_images_again(policy, tmp_path):
    """Also of responses that a checkpoint has, to prompts whose images it has not."""
    _, whole = reinforced(tmp_path / "whole", policy, 4, TRAINED)
    _, stopped = reinforced(tmp_path / "stopped", policy, 2, TRAINED)
    stopped.publish(2)
    stopped.collect(2)
    snapshot = Snapshot(stopped, RANKS, 2)
    _, resumed = reinforced(tmp_path / "resumed", policy, 0, TRAINED)
    resumed.restore(snapshot)
    restore_generators(RANKS, snapshot.generators)
    train(resumed, (2, 3))
    one, other = parameters(whole), parameters(resumed)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_responses_to_images_that_are_others_now_are_asked_for_again(policy, tmp_path):
    """The tokens of a checkpoint's prompts stand for the images that were read then."""
    _, stopped = reinforced(tmp_path / "stopped", policy, 0)
    stopped.publish(0)
    stopped.collect(0)
    snapshot, begun = Snapshot(stopped, RANKS, 0), []
    snapshot._blobs[BLOB] = b"responses that generators have begun"
    snapshot.blobs = tuple(snapshot._blobs)
    smaller = ("spec.data.maxPixels=256",)
    for name, overrides, data in (
        ("same", (), {}),
        ("smaller", smaller, {}),
        ("other", (), {"images of x": 1}),
    ):
        snapshot.state["data"] = data
        _, resumed = reinforced(tmp_path / name, policy, 0, *overrides)
        resumed._rollouts.restore = begun.append
        resumed.restore(snapshot)
        assert (resumed._pending is None) == (name != "same")
        assert len(resumed._source._again) == (0 if name == "same" else 4)
    assert begun == [snapshot.blob(BLOB), snapshot.blob(BLOB), None]
