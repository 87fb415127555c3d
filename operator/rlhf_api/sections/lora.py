"""Low-rank adapters of trained models (Hu et al. 2021, arXiv:2106.09685)."""

from pydantic import Field

from ..field_types import Frozen, ModelField, Positive, PositiveFloat


class Lora(Frozen):
    """Trains W + (alpha / rank) B A for the weights W of linear layers: only A and B, W stays frozen."""

    rank: Positive = 8
    """Columns of B and rows of A."""
    alpha: PositiveFloat | None = None
    """Scale of B A, times the rank; equal to the rank unless given, which is a scale of 1."""
    rank_stabilized: bool = False
    """The scale is alpha / sqrt(rank) (rsLoRA); needs alpha."""
    weight_decomposed: bool = False
    """Trains the length of each output's weights, too, apart from their direction (DoRA)."""
    target_modules: tuple[str, ...] | None = Field(None, min_length=1)
    """Suffixes of the layers' names, such as `q_proj`, `layers.0.mlp.up_proj` or `experts.down_proj`; all linear
    layers unless given, but the head and a mixture's experts, which names with `experts.` mean."""


def shortest_target(name: str) -> str:
    """The shortest target that names a layer or a weight of experts: `up_proj`, `experts.down_proj`. `down_proj` alone
    is of dense layers, since of experts it would be one of two fused weights."""
    *places, last = name.split(".")
    return f"experts.{last}" if places[-1:] == ["experts"] else last


def is_named(name: str, target: str) -> bool:
    """True if a target names the layer, or the weight of experts, of this name."""
    return f".{name}".endswith(f".{target}") and f".{target}".endswith(f".{shortest_target(name)}")


class Adapters(Frozen):
    """Trained models with an adapter; of the other trained models, all weights are trained."""

    policy: Lora | None = None
    """Adapter of the model that starts from `policy`."""
    critic: Lora | None = None
    """Adapter of the critic; its value head is trained in full."""

    def of(self, field: ModelField) -> Lora | None:
        """The adapter of the model that starts from a field of `spec.model`."""
        adapter: Lora | None = getattr(self, field, None)
        return adapter
