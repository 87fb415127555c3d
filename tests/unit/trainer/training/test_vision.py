"""A policy that reads images: its log-probabilities are Transformers' own, packed too; what is frozen stays."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.support.tiny.vision import TEMPLATE, tiny_vision, write_rows
from tests.unit.trainer.replay.ppo_worker import Snapshot
from tests.unit.trainer.training.running import RANKS
from tests.unit.trainer.training.saving.test_snapshot_export import assert_same, save
from tests.unit.trainer.training.tuned import fine_tuned
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from rlhf_api.contract.run import ExportRequest
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import Data, Source
from rlhf_trainer.data.dataset import open_dataset
from rlhf_trainer.data.vision import ImageReader
from rlhf_trainer.export.snapshot import export_snapshot
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.pretrained.load import load_policy, load_tokenizer
from rlhf_trainer.ops.datasets import given_columns


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
    for step in (2, 3):
        resumed.collect(step)
        resumed.train(step)
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
