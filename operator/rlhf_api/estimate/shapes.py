"""Widths of a decoder, and the parameters that follow from them: of an adapter, and of what is frozen; pure."""

from collections.abc import Callable
from dataclasses import dataclass

from ..sections.lora import Lora, is_named

FUSED = ("experts.down_proj", "experts.gate_up_proj")
"""Ends of the names of the weights of a layer's experts, which Transformers fuses into two tensors."""


@dataclass(frozen=True)
class Mixture:
    """Layers with experts in place of one gated layer: their places, the number of experts, those chosen for a token,
    and the widths within an expert and within those that all tokens pass."""

    layers: frozenset[int]
    experts: int
    chosen: int
    inner: int
    shared: int = 0
    shared_name: str = ""
    """Of the module that all tokens pass."""
    shared_gate: bool = False
    """True if what all tokens pass is weighted by a gate of its own."""
    float32_weights: bool = False
    """True if outputs of experts are weighted in float32 in any dtype."""
    float32_router: bool = False
    """True if the router computes in float32 in any dtype."""
    fused: bool = False
    """True if Liger has norms for the type."""


@dataclass(frozen=True)
class Shape:
    """Widths of a decoder with gated layers: hidden states, all heads' queries and keys, intermediate layer."""

    layers: int
    hidden: int
    queries: int
    keys: int
    inner: int
    vocabulary: int
    norms: int = 2
    """Norms per layer, except those of queries and keys."""
    head_norms: bool = False
    tied: bool = False
    """True if the output layer has the embeddings' weights."""
    mixture: Mixture | None = None

    def mixture_at(self, layer: int) -> Mixture | None:
        """The experts of a layer; None for a dense one."""
        return self.mixture if self.mixture and layer in self.mixture.layers else None

    @property
    def expert(self) -> int:
        """Parameters of one expert; 0 without any."""
        return 3 * self.hidden * self.mixture.inner if self.mixture else 0


def matrix_parameters(shape: Shape) -> int:
    """Parameters of the matrices of all layers."""
    return sum(sum(_matrices(shape, layer).values()) for layer in range(shape.layers))


def adapter_parameters(settings: Lora, shape: Shape) -> int:
    """Parameters of a decoder's adapter: rank x (inputs + outputs) of each linear layer that has one, and its outputs
    once more for their magnitudes."""
    widths = [width for layer in _adapted(settings, shape) for width in layer]
    magnitudes = sum(outputs for _, outputs in widths) if settings.weight_decomposed else 0
    return settings.rank * sum(map(sum, widths)) + magnitudes


def magnitude_elements(settings: Lora | None, shape: Shape) -> tuple[int, int]:
    """Elements that magnitudes add to a decoder's activations: per token of the layer that has most of them, and of the
    largest norm. PEFT keeps what W and B A each make of a token. For the norm it makes B A of the identity [in, in],
    and holds B A, its multiple and the sum with W at once, [out, in] each."""
    if settings is None or not settings.weight_decomposed:
        return 0, 0
    layers = _adapted(settings, shape)
    norms = [inputs * (inputs + 3 * outputs) for layer in layers for inputs, outputs in layer]
    return 2 * max(sum(outputs for _, outputs in layer) for layer in layers), max(norms, default=0)


def frozen_parameters(is_frozen: Callable[[str], bool], shape: Shape) -> int:
    """Parameters of a decoder's matrices whose names are frozen; vectors are not counted."""
    ends = [is_frozen(f"{name}.weight") for name in ("model.embed_tokens", "lm_head")]
    whole = any(ends) if shape.tied else sum(ends)
    frozen = matrix_parameters(shape) - hidden_parameters(is_frozen, shape)
    return whole * shape.vocabulary * shape.hidden + frozen


def hidden_parameters(is_frozen: Callable[[str], bool], shape: Shape) -> int:
    """Parameters of the matrices of a decoder's layers that are not frozen."""
    return sum(
        count
        for layer in range(shape.layers)
        for part, count in _matrices(shape, layer).items()
        if not is_frozen(f"model.layers.{layer}.{part}")
    )


def names_experts(settings: Lora) -> bool:
    """True if the adapter has matrices of the experts of a mixture."""
    return any(".experts." in f".{target}" for target in settings.target_modules or ())


def _adapted(settings: Lora, shape: Shape) -> list[list[tuple[int, int]]]:
    """Inputs and outputs of the matrices that have an adapter, by a decoder's layers: of linear layers, and of each
    expert where they are named."""
    targets, layers = settings.target_modules, []

    def is_target(name: str) -> bool:
        return any(is_named(name, target) for target in targets or ())

    for layer in range(shape.layers):
        linear, at = _linear(shape, layer), f"model.layers.{layer}"
        widths = [linear[part] for part in linear if targets is None or is_target(f"{at}.{part}")]
        if mixture := shape.mixture_at(layer):
            experts = zip(FUSED, _expert_widths(shape, mixture), strict=True)
            named = [width for part, width in experts if is_target(f"{at}.mlp.{part}")]
            widths += mixture.experts * named
        layers.append(widths)
    return layers


def _matrices(shape: Shape, layer: int) -> dict[str, int]:
    """Parameters of the matrices of a decoder's layer by their names."""
    linear = {f"{part}.weight": a * b for part, (a, b) in _linear(shape, layer).items()}
    mixture = shape.mixture_at(layer)
    if mixture is None:
        return linear
    widths = zip(FUSED, _expert_widths(shape, mixture), strict=True)
    experts = {f"mlp.{part}": mixture.experts * a * b for part, (a, b) in widths}
    return linear | experts | {"mlp.gate.weight": mixture.experts * shape.hidden}


def _expert_widths(shape: Shape, mixture: Mixture) -> tuple[tuple[int, int], tuple[int, int]]:
    """Inputs and outputs of an expert's part of each of `FUSED`."""
    return (mixture.inner, shape.hidden), (shape.hidden, 2 * mixture.inner)


def _linear(shape: Shape, layer: int) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the linear layers of a decoder's layer."""
    attention = {
        "self_attn.q_proj": (shape.hidden, shape.queries),
        "self_attn.k_proj": (shape.hidden, shape.keys),
        "self_attn.v_proj": (shape.hidden, shape.keys),
        "self_attn.o_proj": (shape.queries, shape.hidden),
    }
    mixture = shape.mixture_at(layer)
    if mixture is None:
        return attention | _gated("mlp", shape.hidden, shape.inner)
    shared = _gated(f"mlp.{mixture.shared_name}", shape.hidden, mixture.shared) if mixture.shared else {}
    gate = {f"mlp.{mixture.shared_name}_gate": (shape.hidden, 1)} if mixture.shared_gate else {}
    return attention | shared | gate


def _gated(name: str, hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    return {
        f"{name}.gate_proj": (hidden, inner),
        f"{name}.up_proj": (hidden, inner),
        f"{name}.down_proj": (inner, hidden),
    }
