"""`rlhf checkpoint export`: a model of any snapshot, from the store alone, equals what the job itself exports."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.tiny.models import byte_tokenizer, tiny_biased_experts, tiny_experts, tiny_model
from tests.unit.trainer.training.running import RANKS, Job
from tests.unit.trainer.training.tuned import base_model, fine_tuned
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from rlhf_api.contract.run import ExportRequest
from rlhf_api.errors.problem import InvalidJob
from rlhf_operator.cli import main
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.export.saved_job import FOLDER
from rlhf_trainer.export.snapshot import export_snapshot

ADAPTER = "spec.model.lora={policy: {rank: 4}}"
OF_EXPERTS = "spec.model.lora={policy: {targetModules: [k_proj, experts.gate_up_proj, experts.down_proj]}}"


def save(folder: Path, task, step: int, *, described: bool = True, reward: float | None = None) -> str:
    """A snapshot of the task's state, as of an earlier release unless `described`; returns the store's URL."""
    archive = Archive(f"file://{folder}")
    committer = Committer.take_over(archive, Retention(last=9))
    saver = Saver(RANKS, archive, committer, committed=lambda _: None)
    files = {name: partial(bytes, data) for name, data in task.export_files().items()} if described else {}
    saver.begin(step, task.state(), task.groups(), {**task.blobs(), **files}, reward)
    saver.finish()
    return archive.store.url


def assert_same(actual: Path, expected: Path) -> None:
    """The same files: tensors bit for bit, all others but the card byte for byte."""
    names = {file.relative_to(expected) for file in expected.rglob("*") if file.is_file()}
    assert {file.relative_to(actual) for file in actual.rglob("*") if file.is_file()} == names
    for name in names - {Path("README.md")}:
        if name.suffix != ".safetensors":
            assert (actual / name).read_bytes() == (expected / name).read_bytes(), name
            continue
        one, other = load_file(actual / name), load_file(expected / name)
        assert one.keys() == other.keys()
        for key, tensor in one.items():
            assert tensor.dtype == other[key].dtype
            assert torch.equal(tensor, other[key]), key


BASES = {
    "llama": lambda folder: base_model(folder),
    "tied": lambda folder: tiny_model(folder, tie=True, seed=0),
    "experts": lambda folder: tiny_experts(folder, seed=0),
    "biased": lambda folder: tiny_biased_experts(folder, seed=0),
}
PLAIN = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
BFLOAT16 = ("spec.model.dtype=bfloat16", "spec.trainer.deepspeed.zero_optimization={stage: 1}")


@pytest.mark.parametrize(
    ("base", "algorithm", "overrides"),
    [
        ("llama", "sft", ()),
        ("llama", "sft", BFLOAT16),
        ("tied", "sft", BFLOAT16),
        ("experts", "sft", ()),
        ("biased", "sft", BFLOAT16),
        ("llama", "reward", ()),
        ("llama", "sft", (ADAPTER,)),
        ("llama", "sft", (ADAPTER, *BFLOAT16)),
        ("experts", "sft", (ADAPTER,)),
        ("experts", "sft", (OF_EXPERTS,)),
        ("llama", "reward", (ADAPTER,)),
    ],
)
def test_a_snapshots_model_is_the_one_that_the_job_exports(base, algorithm, overrides, tmp_path):
    start = BASES[base](tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")  # some types would load a class of their own
    own = (f"spec.data.chatTemplate={json.dumps(PLAIN)}", f"spec.model.tokenizer={tmp_path / 'tokenizer'}")
    given = () if base == "llama" else own
    ctx, task = fine_tuned(tmp_path, start, 2, *given, *overrides, algorithm=algorithm)
    store = save(tmp_path / "store", task, 2)
    task.export(2)
    adapted = {ADAPTER, OF_EXPERTS} & {*overrides}
    if not adapted:
        shutil.rmtree(start)  # a whole model needs nothing but the store
    export_snapshot(ExportRequest(store=store, step=2, out=str(tmp_path / "out")))
    assert_same(tmp_path / "out", ctx.workdir / "policy")
    if adapted:
        elsewhere = start.rename(tmp_path / "elsewhere")
        alone = tmp_path / "alone"
        export_snapshot(ExportRequest(store=store, step=2, out=str(alone), adapter="alone"))
        assert_same(alone, ctx.workdir / "policy-adapter")
        moved = ExportRequest(store=store, step=2, out=str(tmp_path / "moved"), model=str(elsewhere))
        export_snapshot(moved)
        assert_same(tmp_path / "moved", ctx.workdir / "policy")


def test_files_of_a_model_are_stored_once(tmp_path):
    _, task = fine_tuned(tmp_path, base_model(tmp_path / "base"), 1)
    for step in (1, 2):
        store = save(tmp_path / "store", task, step)
    one, two = (
        {n: s.digest for n, s in Archive(store).open(e).manifest.blobs.items() if n.startswith(FOLDER)}
        for e in Archive(store).entries()
    )
    assert one == two
    names = {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"}
    assert {f"{FOLDER}policy/{name}" for name in names} < one.keys()


@pytest.mark.parametrize("overrides", [(), (ADAPTER,)])
def test_a_snapshot_of_an_earlier_release_is_written_with_the_model_that_it_began_from(overrides, tmp_path):
    start = base_model(tmp_path / "base")
    ctx, task = fine_tuned(tmp_path, start, 2, *overrides)
    store = save(tmp_path / "store", task, 2, described=False)
    task.export(2)
    request = ExportRequest(store=store, step=2, out=str(tmp_path / "out"))
    with pytest.raises(InvalidJob, match="--model: is needed: this checkpoint is of a release that saved no"):
        export_snapshot(request)
    export_snapshot(request.model_copy(update={"model": str(start)}))
    weights, expected = (
        load_file(f / "model.safetensors") for f in (tmp_path / "out", ctx.workdir / "policy")
    )
    assert weights.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_a_critic_is_written_on_request(tmp_path):
    job = Job("ppo", "minibatchSize: 16").steps(0, 1)
    store = save(tmp_path / "store", job.task, 1)
    export_snapshot(ExportRequest(store=store, step=1, out=str(tmp_path / "critic"), field="critic"))
    opened = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic")
    live = dict(job.models["critic"].named_tensors())
    assert all(torch.equal(tensor, live[name]) for name, tensor in opened.state_dict().items())


def test_options_that_do_not_go_with_the_model_are_refused(tmp_path):
    start = base_model(tmp_path / "base")
    _, task = fine_tuned(tmp_path, start, 1)
    whole = ExportRequest(store=save(tmp_path / "whole", task, 1), step=1, out=str(tmp_path / "out"))
    _, task = fine_tuned(tmp_path, start, 1, ADAPTER)
    adapter = whole.model_copy(update={"store": save(tmp_path / "adapter", task, 1)})
    refused = [
        (whole, {"adapter": "alone"}, "--adapter: the policy was trained as a whole"),
        (whole, {"model": str(start)}, "--model: the checkpoint has all of it"),
        (whole, {"field": "critic"}, "--of: the job trains policy; got critic"),
        (adapter, {"model": str(other_base(tmp_path / "other"))}, "are not those below the adapter"),
        (adapter, {"model": "/nowhere"}, "--model: there is no directory '/nowhere'"),
    ]
    for request, given, message in refused:
        with pytest.raises(InvalidJob, match=message):
            export_snapshot(request.model_copy(update=given))
    assert not (tmp_path / "out").exists()


def other_base(folder: Path) -> Path:
    base_model(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    model.save_pretrained(folder)
    return folder


def test_the_command_finds_the_best_and_the_latest_step(tmp_path, capfd, forked_programs):  # noqa: ARG001
    ctx, task = fine_tuned(tmp_path, base_model(tmp_path / "base"), 2)
    for step, reward in ((1, 0.5), (2, 0.25), (3, None)):
        save(ctx.workdir / "checkpoints", task, step, reward=reward)
    for which, step in (("best", 1), ("latest", 3), ("2", 2)):
        out = tmp_path / which
        assert main(["checkpoint", "export", str(ctx.workdir), which, str(out)]) == 0
        assert capfd.readouterr().out == f"the policy of step {step} is in {out}\n"
        AutoModelForCausalLM.from_pretrained(out)
    card = (tmp_path / "best" / "README.md").read_text()
    assert "Trained by sft for 1 of 2 steps." in card
    assert "Evaluation at this step: 0.5" in card
    assert str(ctx.workdir) not in card
