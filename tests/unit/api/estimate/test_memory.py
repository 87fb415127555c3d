"""Memory of a trainer's rank: the formulae against DeepSpeed's tensors, against measurements on GPUs, and against the
page."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakSet

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ports import free_port
from tests.unit.api.estimate import kept as real
from tests.unit.api.manifests import job
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.activations import HEAD_ELEMENTS, Pass, backward_bytes
from rlhf_api.estimate.memory import Trained, trainer
from rlhf_api.estimate.parameters import shape_of
from rlhf_api.estimate.shapes import Shape, adapter_parameters, frozen_parameters, magnitude_elements
from rlhf_api.estimate.sizes import Size, Sizes
from rlhf_api.estimate.trainer_memory import trained
from rlhf_api.estimate.zero import EIGHT_BIT, Zero, reducing, resident, stepping
from rlhf_api.manifest.load import apply_override, parse
from rlhf_api.sections.lora import Lora
from rlhf_api.sections.model import Model
from rlhf_operator.commands.plan_table import plan_lines
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.eight_bit import Moment
from rlhf_trainer.models.frozen import freeze_parts
from rlhf_trainer.models.muon import has_momentum, make_muon

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "memory.md"
# dtype, stage, ranks: bytes of each parameter that a model keeps, as torch.cuda saw them on H200s
KEPT = [
    ("bfloat16", 1, 1, 18.0),
    ("bfloat16", 1, 2, 12.0),
    ("bfloat16", 2, 1, 14.0),
    ("bfloat16", 2, 2, 8.0),
    ("bfloat16", 3, 1, 18.0),
    ("bfloat16", 3, 2, 9.0),
    ("float16", 1, 1, 14.0),
    ("float16", 2, 1, 14.0),
    ("float16", 3, 1, 16.0),
    ("float32", 0, 1, 12.0),
    ("float32", 0, 2, 12.0),
    ("float32", 1, 1, 16.0),
    ("float32", 1, 2, 10.0),
    ("float32", 2, 1, 16.0),
    ("float32", 2, 2, 10.0),
    ("float32", 3, 1, 20.0),
    ("float32", 3, 2, 10.0),
]
# and the most beside these in the backward passes and in the optimizer's step (benchmarks/trainer/update_memory.py)
SEEN = [
    ("bfloat16", 1, 1, "default", 2.25, 2.0),
    ("bfloat16", 1, 2, "default", 2.25, 2.0),
    ("bfloat16", 2, 1, "default", 4.67, 4.5),  # less its bucket
    ("bfloat16", 2, 2, "default", 2.67, 2.5),  # less its bucket
    ("bfloat16", 3, 1, "default", 0.5, 4.0),
    ("bfloat16", 3, 2, "default", 2.26, 2.0),
    ("float16", 1, 1, "default", 4.0, 8.0),
    ("float16", 1, 2, "default", 3.0, 4.0),
    ("float16", 2, 1, "default", 4.26, 8.0),
    ("float16", 2, 2, "default", 2.26, 4.0),
    ("float16", 3, 1, "default", 0.26, 6.0),
    ("float16", 3, 2, "default", 2.26, 3.0),
    ("float32", 0, 1, "default", 4.26, 4.0),
    ("float32", 0, 2, "default", 7.49, 4.0),
    ("float32", 1, 1, "default", 8.01, 8.0),
    ("float32", 1, 2, "default", 6.01, 4.0),
    ("float32", 2, 1, "default", 8.52, 8.0),
    ("float32", 2, 2, "default", 4.51, 4.0),
    ("float32", 3, 1, "default", 0.51, 4.0),
    ("float32", 3, 2, "default", 4.51, 2.0),
    ("bfloat16", 1, 1, "torch_adam", 2.25, 6.0),
    ("bfloat16", 1, 2, "torch_adam", 2.25, 4.0),
    ("bfloat16", 2, 1, "torch_adam", 6.12, 8.0),
    ("bfloat16", 2, 2, "torch_adam", 3.12, 4.0),
    ("bfloat16", 3, 1, "torch_adam", 0.5, 8.0),
    ("bfloat16", 3, 2, "torch_adam", 2.26, 4.0),
    ("float16", 1, 1, "torch_adam", 4.0, 10.0),
    ("float16", 1, 2, "torch_adam", 3.0, 5.0),
    ("float16", 2, 1, "torch_adam", 4.26, 10.0),
    ("float16", 2, 2, "torch_adam", 2.26, 5.0),
    ("float16", 3, 1, "torch_adam", 0.26, 8.0),
    ("float16", 3, 2, "torch_adam", 2.26, 4.0),
    ("float32", 0, 1, "torch_adam", 4.26, 8.0),
    ("float32", 0, 2, "torch_adam", 7.49, 8.0),
    ("float32", 1, 1, "torch_adam", 8.01, 12.0),
    ("float32", 1, 2, "torch_adam", 6.01, 6.0),
    ("float32", 2, 1, "torch_adam", 8.52, 12.0),
    ("float32", 2, 2, "torch_adam", 4.51, 6.0),
    ("float32", 3, 1, "torch_adam", 0.51, 8.0),
    ("float32", 3, 2, "torch_adam", 4.51, 4.0),
    ("bfloat16", 1, 1, "offload", 8.24, 4.0),
    ("bfloat16", 1, 2, "offload", 6.24, 4.01),
    ("bfloat16", 2, 1, "offload", 4.67, 4.0),  # less its bucket
    ("bfloat16", 2, 2, "offload", 2.67, 2.0),  # less its bucket
    ("float16", 1, 1, "offload", 2.37, 0.0),
    ("float16", 1, 2, "offload", 2.37, 0.0),
    ("float16", 2, 1, "offload", 2.03, 0.0),
    ("float16", 2, 2, "offload", 1.03, 0.0),
    ("float32", 1, 1, "offload", 4.27, 0.0),
    ("float32", 1, 2, "offload", 4.27, 0.0),
    ("float32", 2, 1, "offload", 4.06, 0.0),
    ("float32", 2, 2, "offload", 2.06, 0.0),
]
LARGEST = 0.7
"""Bytes that the largest tensors of that model can add, for each of its parameters."""


@pytest.mark.parametrize(("dtype", "stage", "ranks", "keeps"), KEPT)
def test_models_keep_what_gpus_showed(dtype, stage, ranks, keeps) -> None:
    assert resident(Zero(dtype=dtype, stage=stage, ranks=ranks)).bytes(ranks) == keeps


@pytest.mark.parametrize(("dtype", "stage", "ranks", "optimizer", "backward", "step"), SEEN)
def test_updates_take_what_gpus_showed(dtype, stage, ranks, optimizer, backward, step) -> None:
    """But for weights that stage 3 gathers, which are counted beside activations, and the buffer of stage 0 (2 GB)."""
    work = 4 if optimizer == "torch_adam" else 0
    zero = Zero(dtype=dtype, stage=stage, ranks=ranks, optimizer_away=optimizer == "offload", work=work)
    measured = step if stage in (0, 3) else max(backward, step)
    counted = max(reducing(zero).bytes(ranks), stepping(zero).bytes(ranks))
    assert counted <= measured <= counted + LARGEST


# shape, ZeRO, tokens, checkpointing, Liger's kernels, a language model: GB at the peak of an update on each GPU, as
# torch.cuda saw them (benchmarks/trainer/train_step.py)
QWEN = {
    "0.5b": Shape(layers=24, hidden=896, queries=896, keys=128, inner=4864, vocabulary=151_936),
    "1.5b": Shape(layers=28, hidden=1536, queries=1536, keys=256, inner=8960, vocabulary=151_936),
    "7b": Shape(layers=28, hidden=3584, queries=3584, keys=512, inner=18_944, vocabulary=152_064),
}
PARAMETERS = {"0.5b": 494e6, "1.5b": 1.544e9, "7b": 7.616e9}
ONE = Zero(dtype="bfloat16", stage=1, ranks=1)
TWO = replace(ONE, ranks=2)
UPDATES = [
    ("1.5b", ONE, 16384, "none", False, True, 81.5),
    ("1.5b", ONE, 16384, "none", True, True, 67.5),
    ("1.5b", ONE, 32768, "none", True, True, 101.3),
    ("1.5b", ONE, 65536, "full", True, True, 40.0),
    ("1.5b", ONE, 16384, "none", True, False, 64.9),
    ("0.5b", ONE, 16384, "none", True, True, 28.4),
    ("0.5b", ONE, 65536, "full", True, True, 15.4),
    ("7b", replace(ONE, stage=2, optimizer_away=True), 16384, "full", True, True, 55.9),
    ("7b", replace(TWO, stage=3), 16384, "full", True, True, 79.9),
    ("1.5b", TWO, 16384, "none", True, True, 61.1),  # of a sequence group
]


@pytest.mark.parametrize(("name", "zero", "tokens", "checkpointing", "fused", "head", "measured"), UPDATES)
def test_activations_are_those_that_gpus_showed_within_a_tenth(
    name, zero, tokens, checkpointing, fused, head, measured
) -> None:
    activations = backward_bytes(QWEN[name], Pass(tokens, 2, checkpointing, fused), head=head)
    predicted = trainer([Trained(PARAMETERS[name], zero, activations)]).total
    assert predicted == pytest.approx(1e9 * measured, rel=0.1)


def test_a_head_in_float32_holds_its_logits_so_and_their_gradient_in_16_bits() -> None:
    shape, run = QWEN["7b"], Pass(4096, 2, "none", fused=True)
    more = backward_bytes(shape, replace(run, float32_head=True), head=True) - backward_bytes(
        shape, run, head=True
    )
    assert more == 2 * HEAD_ELEMENTS


def test_selective_lies_halfway_between_none_and_full() -> None:
    shape = QWEN["1.5b"]

    def need(checkpointing, shape=shape) -> float:
        return backward_bytes(shape, Pass(32768, 2, checkpointing, fused=True), head=False)

    layer = need("none") - need("none", replace(shape, layers=shape.layers - 1))
    assert 2 * need("selective") == need("none") + need("full") + layer, (
        "one layer is there while computed again"
    )


@pytest.mark.slow
def test_the_formulae_are_what_deepspeed_keeps() -> None:
    meeting = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *meeting, "--nproc-per-node=2", real.__file__],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    for name, measured in json.loads(finished.stdout).items():
        dtype, stage, _ = real.CASES[name]
        assert measured == pytest.approx(
            resident(Zero(dtype=dtype, stage=stage, ranks=2)).bytes(2), abs=0.05
        ), name


TRAINERS = st.builds(
    Zero,
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    stage=st.integers(1, 3),
    ranks=st.sampled_from([1, 2, 4, 16]),
)


@given(zero=TRAINERS, parameters=st.floats(3e8, 1e11))
def test_more_ranks_and_higher_stages_never_need_more_for_training(zero, parameters) -> None:
    """Of smaller models a sixteenth of the optimizer is less than the buckets through which it is moved."""

    def need(zero: Zero) -> float:
        return trainer([Trained(parameters, zero)] * 2).total

    assert need(replace(zero, ranks=2 * zero.ranks)) <= need(zero)
    assert need(replace(zero, optimizer_away=True)) <= need(zero)


def test_each_model_is_counted_by_its_own_division() -> None:
    """The larger update of the two comes on top of what both keep."""
    actor = Trained(1e9, Zero(dtype="bfloat16", stage=3, ranks=2), 3e9, gathers=True)
    critic = Trained(1e9, Zero(dtype="float32", stage=1, ranks=2), 1e9)
    both = trainer([actor, critic])
    assert both.total == pytest.approx(1e9 * (9 + 10 + 6) + 5e8 * (2 + 4))
    assert both.words == (
        "1e9 parameters x (2 weights + 4 gradients + 4 master weights + 8 moments) B / 2 ranks + 1e9 parameters x "
        "(4 weights + (4 master weights + 8 moments) / 2 ranks) B + 1e9 x (4 gradients + 4 summed gradients / 2 "
        "ranks) B in an update and 2 GB of its reduce bucket + 1 GB of reduce buckets"
    )
    assert trainer([critic]).total == 1e9 * (10 + 6) + 5e8 * 4
    long = trainer([replace(actor, activations=30e9), critic])
    assert "2 GB of gathered weights and 30 GB of activations in the backward pass" in long.words
    heavy = trainer([actor, replace(critic, activations=30e9)])
    assert "1e9 x (4 gradients) B and 30 GB of activations in the backward pass" in heavy.words


def test_gradients_and_optimizer_states_are_those_of_the_adapter_alone() -> None:
    zero = Zero(dtype="bfloat16", stage=1, ranks=4)
    policy, critic = Trained(1e9, zero, part=0.0, adapted=True), Trained(2e9, zero, part=0.0, adapted=True)
    assert trainer([policy, critic]).total == 3e9 * 2, "widths that are not known"
    whole = trainer([replace(policy, part=None)]).total
    assert trainer([replace(policy, part=None), critic]).total == whole + 2e9 * 2
    adapted = trainer([replace(policy, part=4e7), critic])
    assert adapted.total == 3e9 * 2 + 4e7 * (2 + 4 + 12 / 4 + 2)
    assert adapted.words == (
        "40e6 trained parameters x (2 weights + 4 gradients + (4 master weights + 8 moments) / 4 ranks) B + 40e6 x "
        "(2 bfloat16 gradients) B in an update + (1e9 + 2e9) parameters, frozen, x 2 B"
    )
    third = [replace(model, zero=replace(zero, stage=3, bucket=1000)) for model in (policy, critic)]
    assert trainer([replace(third[0], gathers=True), third[1]]).total == 3e9 * 2 / 4 + 1e9 * 2
    assert trainer(third).words.endswith("(1e9 + 2e9) parameters, frozen, x 2 B / 4 ranks")


def test_what_is_frozen_has_neither_gradients_nor_moments() -> None:
    zero = Zero(dtype="bfloat16", stage=1, ranks=4)
    half = trainer([Trained(1e9, zero, part=4e8)])
    assert half.total == 6e8 * 2 + 4e8 * (2 + 4 + 12 / 4 + 2)
    assert half.words.endswith("in an update + 600e6 parameters, frozen, x 2 B")


@pytest.mark.parametrize("tied", [False, True])
def test_frozen_parameters_are_those_of_transformers(tied: bool) -> None:
    widths = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3, "vocab_size": 30}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4, "tie_word_embeddings": tied}
    model = LlamaForCausalLM(LlamaConfig(**widths, **heads))
    shape = shape_of(model.config.to_dict())
    ends = (["embed_tokens"], ["lm_head"], ["lm_head", "embed_tokens"])
    for parts in (*ends, ["layers.[0-1]"], ["mlp", "q_proj"]):
        settings = Model(freeze=tuple(parts))
        whole = LlamaForCausalLM(model.config)
        freeze_parts(whole, parts)
        matrices = sum(p.numel() for p in whole.parameters() if not p.requires_grad and p.ndim == 2)
        assert frozen_parameters(settings.is_frozen, shape) == matrices > 0, parts


def test_an_adapter_has_the_parameters_of_the_layers_that_it_names() -> None:
    def count(*targets: str) -> int:
        given = {"targetModules": targets} if targets else {}
        return adapter_parameters(Lora.model_validate({"rank": 16, **given}), QWEN["7b"])

    assert count() == 40_370_176
    assert count("q_proj", "v_proj") == 28 * 16 * (2 * 3584 + 3584 + 512)
    assert count("layers.0.mlp.up_proj") == count("0.mlp.up_proj") == 16 * (3584 + 18_944)
    assert count("1.mlp.down_proj") == 16 * (3584 + 18_944), "not those of layers 11 and 21"


@dataclass(eq=False)
class Saved:
    """A tensor that a graph keeps for the backward pass."""

    tensor: torch.Tensor


def test_magnitudes_have_the_elements_that_peft_makes_of_them() -> None:
    """Counts what a backward pass keeps by hooks on saved tensors; the norm's by the largest matrix."""
    widths = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 30}
    config = LlamaConfig(**widths, num_attention_heads=4, num_key_value_heads=2, head_dim=12)
    shape, tokens = shape_of(config.to_dict()), 64
    elements = {}
    for decomposed in (False, True):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        settings = Lora(rank=4, weightDecomposed=decomposed)
        Adapter(model, settings, 0, "")
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert adapter_parameters(settings, shape) == trained
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        saved: WeakSet[Saved] = WeakSet()

        def keep(tensor: torch.Tensor, saved: WeakSet[Saved] = saved) -> Saved:
            saved.add(one := Saved(tensor))
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one.tensor):
            logits = model(torch.arange(tokens)[None] % 30).logits
        assert logits.requires_grad, "what its graph keeps is alive"
        storages = {s.data_ptr(): s.nbytes() for s in (one.tensor.untyped_storage() for one in saved)}
        elements[decomposed] = sum(size // 4 for place, size in storages.items() if place not in own)
    a_token, norm = magnitude_elements(Lora(rank=4, weightDecomposed=True), shape)
    factors = 2 * (48 + 24 + 24 + 48 + 80 + 80 + 48)
    assert elements[True] - elements[False] == pytest.approx(2 * a_token * tokens, abs=4 * factors)
    assert norm == 80 * (80 + 3 * 48)
    assert magnitude_elements(Lora(rank=4), shape) == magnitude_elements(None, shape) == (0, 0)
    run = Pass(tokens, 2, "none", fused=True)
    more = replace(run, magnitudes=(a_token, norm))
    added = backward_bytes(shape, more, head=False) - backward_bytes(shape, run, head=False)
    assert added == (2 * a_token * tokens + norm) * 2


def test_the_page_about_memory_is_what_the_code_does() -> None:
    text = PAGE.read_text()
    for dtype in ("bfloat16", "float16", "float32"):
        for stage in range(0 if dtype == "float32" else 1, 4):
            zero = Zero(dtype=dtype, stage=stage, ranks=8)
            words = [share(zero).words(8) for share in (resident, reducing, stepping)]
            assert f"| {dtype} | {stage} | {' | '.join(words)} |" in text
    (written,) = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.S | re.M)
    made = yaml.safe_load(written)
    table, half, full = re.findall(r"^```text\n(.*?)\n```", text, flags=re.S | re.M)
    assert plan_lines(parse(made).spec) == table.splitlines()
    for overrides, message in (
        (("spec.trainer.processesPerReplica=4", "spec.trainer.pods.gpu.count=4"), half),
        (("spec.generator.engineArguments={gpu-memory-utilization: 0.92}",), full),
    ):
        changed = made
        for override in overrides:
            changed = apply_override(changed, override)
        with pytest.raises(InvalidJob) as caught:
            parse(changed)
        assert str(caught.value) == message


def test_moments_in_8_bits_are_counted_with_their_scales() -> None:
    moment, sizes = (
        Moment.zeros(10**6, torch.zeros(256)),
        Sizes(policy=Size(1e9), critic=Size(1e9), frozen={}),
    )
    assert 0 <= EIGHT_BIT - 2 * (moment.codes.nbytes + moment.scales.nbytes) / 10**6 < 0.01
    models = trained(job("spec.optimizer.moments=8bit").spec, sizes)
    assert [model.zero.moments for model in models] == [EIGHT_BIT, EIGHT_BIT]


def test_muon_keeps_one_momentum_of_hidden_matrices_which_the_plan_counts() -> None:
    widths = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 30}
    model = LlamaForCausalLM(LlamaConfig(**widths, num_attention_heads=4))
    config = model.config.to_dict()
    parameters = sum(p.numel() for p in model.parameters())
    make_muon(model, {"lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0})
    mean = sum(p.numel() * (4 if has_momentum(p) else 8) for p in model.parameters()) / parameters
    sizes = Sizes(policy=Size(parameters, shape_of(config)), critic=Size(parameters), frozen={})
    policy, critic = trained(job("spec.optimizer.matrices=muon").spec, sizes)
    assert mean <= policy.zero.moments <= mean + 0.1 < 5
    assert critic.zero.moments == 8, "its widths are unknown"
