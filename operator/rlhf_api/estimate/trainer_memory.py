"""Memory that a rank of the trainer needs for the models of a job; pure."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ..graph import POLICY, Dataset, Model
from ..spec import Spec
from .activations import Experts, Pass, backward_bytes
from .memory import Need, Trained, trainer
from .shapes import FUSED, Shape, adapter_parameters, hidden_parameters, magnitude_elements, names_experts
from .sizes import Size, Sizes, frozen_part
from .zero import BYTES, Zero


def training(spec: Spec, sizes: Sizes, share: float = 1.0) -> Need:
    """Memory of a trainer's rank, with this share of its activations."""
    return trainer(trained(spec, sizes, share))


def trained(spec: Spec, sizes: Sizes, share: float = 1.0) -> list[Trained]:
    """The models whose size is known, with this share of their activations where those of all are known."""
    models, graph = [], spec.graph
    for model in graph.trained:
        size = getattr(sizes, model.field)
        if size is not None:
            activations = _activations(spec, model, size)
            zero = Zero.of(spec, model.field)
            if spec.optimizer.matrices == "muon" and size.shape is not None:
                zero = replace(zero, moments=_moments(spec, model, size, size.shape))
            models.append(
                Trained(
                    size.parameters,
                    zero,
                    None if activations is None else share * activations,
                    part=_part(spec, model, size),
                    adapted=spec.model.adapter(model.field) is not None,
                    gathers=model == POLICY and graph.generates and spec.generator.shared_with_trainer,
                    averaged=model in graph.averages,
                )
            )
    return models if counted(models) else [replace(model, activations=None) for model in models]


def largest_row(spec: Spec, model: Model) -> int:
    """Most tokens of a row that no micro-batch divides: one with given responses, or a pair, which has two sequences.
    0: a model trains on single sampled responses alone."""
    graph, longest = spec.graph, spec.data.max_prompt_length + spec.data.max_response_length
    if isinstance(graph.source, Dataset):
        return graph.source.group * longest
    paired = any(node.pairs for node in graph.train if node.model == model)
    pair = 2 * (spec.data.max_prompt_length + spec.longest_response) if paired else 0
    return max(pair, longest if spec.pretraining is not None and model == POLICY else 0)


def counted(models: Sequence[Trained]) -> bool:
    """True if activations are counted: the widths of all models are known."""
    return bool(models) and all(model.activations is not None for model in models)


def _moments(spec: Spec, model: Model, size: Size, shape: Shape) -> float:
    """Bytes of the optimizer's state per trained parameter, rounded up to a tenth: Muon's momentum, AdamW's moments."""
    trained = _part(spec, model, size) or size.parameters
    frozen = spec.model.is_frozen if model.field == "policy" else lambda _: False
    share = min(1.0, hidden_parameters(frozen, shape) / trained)
    return math.ceil(10 * (8 - 4 * share)) / 10


def _part(spec: Spec, model: Model, size: Size) -> float | None:
    """Parameters that are trained, where not all are; all where it is not known which are frozen."""
    settings = spec.model.adapter(model.field)
    if settings is not None:
        return adapter_parameters(settings, size.shape) if size.shape else 0.0
    frozen = frozen_part(spec, size) if model.field == "policy" else 0.0
    return size.parameters - frozen if frozen else None


def _experts(spec: Spec, model: Model, shape: Shape) -> Experts:
    """Of the experts of a mixture: frozen where an adapter leaves them out or the job freezes all of them."""
    adapter = spec.model.adapter(model.field)
    if adapter is not None:
        return "adapted" if names_experts(adapter) else "frozen"
    layers = shape.mixture.layers if shape.mixture and model.field == "policy" else ()
    names = [f"model.layers.{layer}.mlp.{part}" for layer in layers for part in FUSED]
    return "frozen" if names and all(map(spec.model.is_frozen, names)) else "trained"


def _activations(spec: Spec, model: Model, size: Size) -> float | None:
    if size.shape is None:
        return None
    section, dtype = spec.trainer, spec.trained_dtype(model.field)
    adapter = spec.model.adapter(model.field)
    tokens, of_policy = section.micro_batch(model.field), model.field == "policy"
    run = Pass(
        tokens,
        BYTES[dtype],
        section.gradient_checkpointing,
        fused=section.kernels != "torch",
        float32_head=spec.model.float32_head,
        magnitudes=magnitude_elements(adapter, size.shape),
        experts=_experts(spec, model, size.shape),
        balanced=of_policy and spec.experts.balance_coefficient > 0,
        replayed=of_policy and spec.experts.replay != "none",
    )
    trained_head = adapter is None and not spec.model.is_frozen("lm_head.weight")
    own_head = model.head == "causal" and trained_head
    return backward_bytes(size.shape, run, head=own_head)
