"""The memory that the plan has for a trained model holds on a GPU."""

import gc
from importlib.util import find_spec

import pytest
import torch
from transformers import PreTrainedConfig, Qwen2Config, Qwen3MoeConfig

from rlhf_api.estimate.activations import Pass, backward_bytes
from rlhf_api.estimate.memory import Trained, trainer
from rlhf_api.estimate.parameters import shape_of
from rlhf_api.estimate.zero import BYTES, EIGHT_BIT, Zero
from rlhf_api.sections.optimizer import Optimizer
from rlhf_trainer.engines.vllm.serve.gpu import gpu_memory

from .cases import ZERO, Update
from .reference import ADAM, Batch, make_engine, update

pytestmark = pytest.mark.usefixtures("one_rank", "an_empty_gpu")
TOKENS = 16384
WIDTHS = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 50_000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "num_labels": 1,
}
SHAPE = Qwen2Config(**WIDTHS, intermediate_size=4096, num_hidden_layers=12)
MIXTURE = Qwen3MoeConfig(  # type: ignore[call-arg]  # those of any configuration
    **WIDTHS,
    moe_intermediate_size=512,
    num_hidden_layers=6,
    head_dim=64,
    num_experts=32,
    num_experts_per_tok=8,
    norm_topk_prob=True,
)
"""0.4e9 parameters; a layer keeps 1.3 GB of `TOKENS` in bfloat16, of which its experts are 1.1."""
SLACK = 1e9
"""Bytes that the plan may be off: cuBLAS's workspaces and what the allocator rounds up."""
CASES = (
    Update("bfloat16", "packed", "1", "policy", "whole", "none", "auto"),
    Update("bfloat16", "packed", "1", "policy", "whole", "full", "auto"),
    Update("bfloat16", "padded", "2", "policy", "whole", "selective", "torch"),
    Update("bfloat16", "packed", "3", "critic", "whole", "none", "auto"),
    Update("bfloat16", "packed", "2 offload", "policy", "whole", "full", "auto"),
    Update("float32", "padded", "0", "policy", "whole", "full", "auto"),
    Update("float32", "padded", "1", "policy", "whole", "none", "auto"),
    Update("float16", "packed", "1", "policy", "whole", "none", "auto"),
)
OF_EXPERTS = (
    Update("bfloat16", "packed", "1", "policy", "whole", "none", "auto"),
    Update("bfloat16", "packed", "1", "policy", "whole", "full", "auto"),
    Update("bfloat16", "packed", "2", "critic", "whole", "none", "torch"),
    Update("float32", "padded", "1", "policy", "whole", "selective", "auto"),
)


@pytest.fixture
def an_empty_gpu() -> None:
    gc.collect()  # engines of earlier tests
    torch.cuda.empty_cache()


def planned(config: PreTrainedConfig, case: Update, parameters: int, moments: float = 8) -> float:
    """Bytes of the plan for one model of so many parameters, and its update."""
    shape = shape_of(config.to_dict())
    assert shape is not None
    run = Pass(TOKENS, BYTES[case.dtype], case.checkpointing, case.kernels == "auto")
    zero = ZERO[case.zero]
    away = "offload_optimizer" in zero
    divided = Zero(dtype=case.dtype, stage=zero["stage"], ranks=1, optimizer_away=away, moments=moments)
    return trainer(
        [Trained(parameters, divided, backward_bytes(shape, run, head=case.head == "policy"))]
    ).total


def measure(config: PreTrainedConfig, case: Update, optimizer: Optimizer) -> tuple[int, int]:
    """Bytes at the peak of two updates, and the model's parameters."""
    batch = Batch(config.vocab_size, case.head, lengths=[(64, 960)] * 32)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine = make_engine(config, case, TOKENS, optimizer)
    for _ in range(2):
        update(engine, case.head, batch, 1e-6)
    peak = torch.cuda.max_memory_allocated() - before
    return peak, sum(getattr(p, "ds_numel", p.numel()) for p in engine.unwrapped.parameters())


@pytest.mark.parametrize(
    ("config", "case"),
    [
        pytest.param(config, case, id=f"{config.model_type}-{case}")
        for config, cases in ((SHAPE, CASES), (MIXTURE, OF_EXPERTS))
        for case in cases
    ],
)
def test_an_update_takes_no_more_memory_than_planned(config: PreTrainedConfig, case: Update):
    peak, parameters = measure(config, case, ADAM)
    plan = planned(config, case, parameters)
    print(f"{config.model_type} {case}: {peak / 1e9:.2f} GB, planned {plan / 1e9:.2f}")
    assert peak < plan + SLACK


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[5]], ids=str)
def test_moments_in_8_bits_take_no_more_memory_than_planned(case: Update):
    peak, parameters = measure(SHAPE, case, ADAM.model_copy(update={"moments": "8bit"}))
    plan = planned(SHAPE, case, parameters, EIGHT_BIT)
    print(f"8 bits {case}: {peak / 1e9:.2f} GB, planned {plan / 1e9:.2f}")
    saved = planned(SHAPE, case, parameters) - plan
    assert saved > SLACK
    assert peak < plan + SLACK


def test_the_driver_tells_the_memory_that_torch_and_vllm_count():
    assert gpu_memory() == torch.cuda.get_device_properties(0).total_memory
