"""Activations and frozen parts of mixtures of experts: the formulae against what the trainer's own layers
hold on a CPU."""

import weakref
from types import SimpleNamespace

import pytest
import torch
from tests.unit.api.manifests import job, unchecked
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_api.estimate.activations import Pass, backward_bytes
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.parameters import count_parameters, shape_of
from rlhf_api.estimate.shapes import frozen_parameters
from rlhf_api.estimate.sizes import Size, Sizes
from rlhf_api.estimate.trainer_memory import trained
from rlhf_api.sections.model import Model
from rlhf_trainer.models.balance import ExpertBalance
from rlhf_trainer.models.forward.efficiency import recompute
from rlhf_trainer.models.forward.routers import Routers
from rlhf_trainer.models.frozen import freeze_parts

TOKENS, LAYERS, CHOSEN = 512, 3, 4
WIDTHS = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": 40,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
FAMILIES = {
    "qwen3_moe": {"num_experts": 8, "head_dim": 24, "mlp_only_layers": [0]},
    "qwen2_moe": {"num_experts": 8, "shared_expert_intermediate_size": 56},
    "mixtral": {"num_local_experts": 8},
    "olmoe": {"num_experts": 8},
    "glm4_moe": {"n_routed_experts": 8},
}


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that operations within have made, now and at most; of no `known` tensor."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._sizes: dict[int, int] = {}
        self.most = 0

    @property
    def now(self) -> int:
        return sum(self._sizes.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._known | self._sizes.keys():
                self._sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self._sizes.pop, storage._cdata)
        self.most = max(self.most, self.now)
        return result


def made(family: str, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **WIDTHS | FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def peak_bytes(model, run: Pass) -> int:
    """The most bytes of a forward and a backward pass, as an update makes them, beside weights and gradients."""
    recompute(model, run.checkpointing)
    routers = Routers.of(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    weights = list(model.parameters())
    choices = torch.arange(CHOSEN).expand(TOKENS, routers.shape.layers, CHOSEN)
    micro = SimpleNamespace(owners=torch.arange(TOKENS) // 64, rows=range(TOKENS // 64))
    given = choices.to(torch.int16) if run.replayed else None
    with Live([*weights, *(p.grad for p in weights if p.grad is not None)]) as live, routers.replaying(given):
        with routers.recording() as routings:
            output = model.model(torch.arange(TOKENS)[None] % 64, use_cache=False).last_hidden_state
        loss = output.sum()
        if run.balanced:
            lengths = torch.full((len(micro.rows),), 64)
            loss = loss + ExpertBalance(0.1, TOKENS, None).add(routings, micro, lengths).to(loss.dtype)
        loss.backward()
    return live.most


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_backward_pass_holds_what_the_formula_says(family, dtype, checkpointing) -> None:
    model = made(family, dtype)
    run = Pass(TOKENS, dtype.itemsize, checkpointing, fused=False)
    predicted = backward_bytes(shape_of(model.config.to_dict()), run, head=False)
    assert predicted == pytest.approx(peak_bytes(model, run), rel=0.07)


@pytest.mark.parametrize("own", [{"balanced": True}, {"replayed": True}, {"experts": "frozen"}])
def test_balance_replay_and_frozen_experts_change_it_by_what_they_hold(own) -> None:
    changes = []
    for run in (Pass(TOKENS, 4, "none", fused=False), Pass(TOKENS, 4, "none", fused=False, **own)):
        model = made("mixtral")
        freeze_parts(model, ["experts"] if run.experts == "frozen" else [])
        predicted = backward_bytes(shape_of(model.config.to_dict()), run, head=False)
        changes.append((peak_bytes(model, run), predicted))
    measured, predicted = (after - before for before, after in zip(*changes, strict=True))
    assert predicted == pytest.approx(measured, rel=0.1)


def test_the_weights_that_adapted_experts_make_are_held_in_each_layer() -> None:
    shape = shape_of(made("mixtral").config.to_dict())
    held = [
        backward_bytes(shape, Pass(8, 2, checkpointing, fused=True, experts=experts), head=False)
        for checkpointing in ("none", "full")
        for experts in ("trained", "adapted")
    ]
    layer = 8 * shape.expert * 2
    assert held[1] - held[0] > LAYERS * layer
    assert layer < held[3] - held[2] < 2 * layer, "the gradient of the larger tensor beside it"


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_parameters_of_a_mixture_are_those_of_transformers(family) -> None:
    for parts in (["experts"], ["mlp.gate"], ["layers.1"], ["self_attn", "gate_up_proj"]):
        model = made(family)
        freeze_parts(model, parts)
        matrices = sum(p.numel() for p in model.parameters() if not p.requires_grad and p.ndim > 1)
        is_frozen = Model(freeze=tuple(parts)).is_frozen
        assert frozen_parameters(is_frozen, shape_of(model.config.to_dict())) == matrices > 0, parts


def test_a_mixture_that_is_created_has_a_size_and_activations() -> None:
    config = WIDTHS | FAMILIES["qwen3_moe"]
    create = f"spec.model.create={{modelType: qwen3_moe, config: {config}}}"
    spec = unchecked("spec.model.policy=null", create)
    (size,) = {Sizes.of(spec, model_sizes(spec)).policy}
    assert size.parameters == count_parameters({**config, "model_type": "qwen3_moe"})
    assert size.choices == (LAYERS - 1) * CHOSEN
    assert size.passed == size.parameters - (LAYERS - 1) * 4 * 3 * 64 * 40, "four of eight experts"


def test_the_plan_counts_what_a_job_does_with_its_experts() -> None:
    size = Size(1e6, shape_of(made("qwen3_moe").config.to_dict()))

    def activations(*overrides: str) -> float:
        spec = job(*overrides).spec
        (policy, _) = trained(spec, Sizes(policy=size, critic=size, frozen={}))
        return policy.activations

    plain = activations()
    assert activations("spec.experts.balanceCoefficient=0.1") > plain
    assert activations("spec.experts.replay=rollout") > plain
    assert activations("spec.model.freeze=[experts]") < plain
    attention = activations("spec.model.lora={policy: {rank: 4}}")
    for target in ("experts.down_proj", "layers.1.mlp.experts.down_proj"):
        assert activations(f"spec.model.lora.policy.targetModules=[{target}]") > attention
