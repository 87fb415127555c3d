"""One update of a small model: on the CPU in float32, one sequence at a time, by Transformers and autograd alone, which
is what a GPU has to agree with; and under DeepSpeed with a job's settings."""

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from rlhf_api.sections.lora import Lora
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.maths.outputs import ResponseLogprobs, response_values, sequence_scores
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.pretrained.heads import class_with_head
from rlhf_trainer.models.pretrained.load import SCORE, VALUE
from rlhf_trainer.models.state import training_state
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.batches import MicroBatch, OutputFn
from rlhf_trainer.tensors.records import Sequences

from .cases import ZERO, Update

CLASSES = {
    "policy": AutoModelForCausalLM,
    "critic": AutoModelForTokenClassification,
    "reward": AutoModelForSequenceClassification,
}
KINDS = {"critic": VALUE, "reward": SCORE}
READ: Mapping[str, OutputFn] = {
    "policy": ResponseLogprobs(),
    "critic": response_values,
    "reward": sequence_scores,
}
ADAM = Optimizer().model_copy(
    update={"learning_rate": 1e-3, "betas": (0.9, 0.99), "epsilon": 1e-6, "gradient_clip": 1e6}
)
PRECISION: Mapping[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"bf16": {"enabled": True}},
    # A scale at which no gradient of these models overflows, so that the first update is made.
    "float16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
}
GRADIENT = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 5e-3}
"""Largest 2-norm of a gradient's difference from the reference's, relative to that one's norm, by dtype: some units in
its last place (2^-24, 2^-8 and 2^-11). On an H200 3e-6, 3.2e-2 and 4.2e-3 were the largest."""
EXPERTS = 4.0
"""Factor of that for a mixture, whose router chooses another expert where two are within rounding: in bfloat16 0.13 of
a router's own gradient on an H200."""
OUTPUT = {"float32": 1e-4, "bfloat16": 1e-1, "float16": 1e-2}
"""Largest difference of a log-probability in nats, value or score from the reference's, by dtype."""
TOKENS = 300
"""Budget of a micro-batch: several of each batch."""


class Batch:
    """Sequences, eleven of uneven lengths unless given, and a loss that weighs each value read from them. `lengths`: of
    prompt and response."""

    def __init__(
        self, vocabulary: int, head: str, seed: int = 0, lengths: Sequence[Sequence[int]] | None = None
    ) -> None:
        dice = torch.Generator().manual_seed(seed)
        lengths = lengths or torch.randint(4, 90, (11, 2), generator=dice).tolist()
        pairs = [
            [torch.randint(2, vocabulary, (n,), generator=dice).tolist() for n in both] for both in lengths
        ]
        self.sequences = Sequences.pack(pairs)
        self.by_row = head == "reward"
        count = self.sequences.response_lengths
        self.sizes = torch.ones_like(count) if self.by_row else count
        """int64 [N]: values of each sequence."""
        self.weights = torch.randn(int(self.sizes.sum()), generator=dice)

    def loss(self, output: Tensor, micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """A weighted mean of the values and their squares, so that the gradient depends on them."""
        weights = self.weights[micro.rows if self.by_row else micro.response_index].to(output.device)
        return ((output * weights).sum() + (output**2).sum() / 40) / len(self.weights), {}


def make_model(
    config: PreTrainedConfig, head: str, dtype: str, *, lora: bool
) -> tuple[PreTrainedModel, Adapter | None]:
    """A model with random weights, the same at every call, rounded to `dtype`."""
    torch.manual_seed(0)
    kind = CLASSES[head]
    made = class_with_head(kind, KINDS[head], config) if head in KINDS else kind
    own = copy.deepcopy(config)
    model = (
        made.from_config(own, dtype=torch.float32)
        if made is kind
        else made._from_config(own, dtype=torch.float32)
    )
    model.eval()
    adapter = Adapter(model, Lora(rank=4, alpha=6.0), 0, "base") if lora else None
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at the start of a run, where A has no gradient
            torch.nn.init.normal_(parameter, std=0.1)
    return model.to(getattr(torch, dtype)), adapter


def compute_reference(
    config: PreTrainedConfig, head: str, dtype: str, lora: bool
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Values of all sequences of the first batch, float32 [sum(sizes)], and the gradient of its loss by parameter, for
    weights rounded to `dtype`, in float32 arithmetic with eager attention: as the model's authors wrote it."""
    batch, (model, _) = Batch(config.vocab_size, head), make_model(config, head, dtype, lora=lora)
    model.float().set_attn_implementation("eager")
    values = []
    for row in range(len(batch.sequences)):
        micro = MicroBatch.build(batch.sequences, [row], 1)
        output = READ[head](model(input_ids=micro.input_ids).logits, micro)
        batch.loss(output, micro)[0].backward()
        values.append(output.detach())
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    return torch.cat(values).numpy(), gradients


class Cpu:
    """A process of its own for references: fused kernels, once a model here has them, replace those of its class."""

    def __init__(self) -> None:
        self._process = ProcessPoolExecutor(1, get_context("spawn"))

    def compute(
        self, config: PreTrainedConfig, head: str, dtype: str, *, lora: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`compute_reference` there."""
        values, gradients = self._process.submit(compute_reference, config, head, dtype, lora).result()
        return torch.from_numpy(values), {name: torch.from_numpy(g) for name, g in gradients.items()}

    def close(self) -> None:
        self._process.shutdown()


def make_engine(
    config: PreTrainedConfig, case: Update, tokens: int = TOKENS, optimizer: Optimizer = ADAM
) -> TrainedModel:
    """The same model under DeepSpeed, with the settings of the case and micro-batches of so many `tokens`."""
    model, adapter = make_model(config, case.head, case.dtype, lora=case.tuned == "lora")
    section = Trainer().model_copy(
        update={
            "dtype": case.dtype,
            "attention": case.attention,
            "gradient_checkpointing": case.checkpointing,
            "kernels": case.kernels,
        }
    )
    deepspeed = {**PRECISION[case.dtype], "zero_optimization": copy.deepcopy(dict(ZERO[case.zero]))}
    return TrainedModel(
        *(model, optimizer, section),
        deepspeed=deepspeed,
        micro_batch_tokens=tokens,
        pad_token_id=1,
        adapter=adapter,
    )


def update(engine: TrainedModel, head: str, batch: Batch, rate: float) -> dict[str, float]:
    return engine.update(batch.sequences, READ[head], batch.loss, rate)


def copy_state(engine: TrainedModel) -> dict[str, Tensor]:
    """The whole training state, on the CPU."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in training_state(engine)}


def first_gradients(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of the first update by parameter, of Adam's first moment after it: (1 - beta1) times it."""
    moments = {name: tensor for name, tensor in state.items() if name.startswith("exp_avg/")}
    return {name.partition("/")[2]: tensor.float() / (1 - ADAM.betas[0]) for name, tensor in moments.items()}


def assert_close(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Each tensor within the tolerance of its norm, or of a twentieth of all tensors' norm if that is larger."""
    assert actual.keys() == expected.keys()
    least = torch.cat([tensor.flatten() for tensor in expected.values()]).norm() / 20
    off = {
        name: float((actual[name].reshape(tensor.shape) - tensor).norm() / max(tensor.norm(), least))
        for name, tensor in expected.items()
    }
    wrong = {name: f"{difference:.1e}" for name, difference in off.items() if difference > tolerance}
    assert not wrong, f"relative difference above {tolerance}: {wrong}"
