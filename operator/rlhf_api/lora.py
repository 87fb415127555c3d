"""Low-rank adapters of trained models (Hu et al. 2021, arXiv:2106.09685): settings and rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from .algorithms import graph_of
from .base import Frozen, ModelField, Positive, PositiveFloat
from .graph import Graph, Infer
from .parameters import Shape
from .problems import Problem

if TYPE_CHECKING:
    from .spec import Spec


class Lora(Frozen):
    """Trains W + (alpha / rank) B A for the weights W of linear layers: only A and B, W stays frozen."""

    rank: Positive = 8
    """Columns of B and rows of A."""
    alpha: PositiveFloat | None = None
    """Scale of B A, times the rank; equal to the rank unless given, which is a scale of 1."""
    target_modules: tuple[str, ...] | None = Field(None, min_length=1)
    """Suffixes of the layers' names, such as `q_proj` or `layers.0.mlp.up_proj`; all linear layers unless given, but
    never the head or the experts of a mixture."""


class Adapters(Frozen):
    """Trained models with an adapter; of the other trained models, all weights are trained."""

    policy: Lora | None = None
    """Adapter of the model that starts from `policy`."""
    critic: Lora | None = None
    """Adapter of the critic; its value head is trained in full."""

    def of(self, field: ModelField) -> Lora | None:
        """The adapter of the model that starts from a field of `spec.model`."""
        found: Lora | None = getattr(self, field, None)
        return found


def parameters(settings: Lora, shape: Shape) -> int:
    """Parameters of a decoder's adapter: rank x (inputs + outputs) of each linear layer that has one."""
    linear = {
        "self_attn.q_proj": (shape.hidden, shape.queries),
        "self_attn.k_proj": (shape.hidden, shape.keys),
        "self_attn.v_proj": (shape.hidden, shape.keys),
        "self_attn.o_proj": (shape.queries, shape.hidden),
        "mlp.gate_proj": (shape.hidden, shape.inner),
        "mlp.up_proj": (shape.hidden, shape.inner),
        "mlp.down_proj": (shape.inner, shape.hidden),
    }
    ends = tuple(f".{target}" for target in settings.target_modules or linear)
    layers = (f".model.layers.{layer}" for layer in range(shape.layers))
    widths = (sum(linear[part]) for at in layers for part in linear if f"{at}.{part}".endswith(ends))
    return settings.rank * sum(widths)


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of adapters of models that the job does not train, or of which it keeps a moving average."""
    if spec.model.lora is None:
        return
    graph, where = graph_of(spec), "spec.model.lora"
    if spec.model.lora == Adapters():
        yield Problem(where, "names no model: set policy or critic in it, or remove it")
    trained = {model.field for model in graph.trained}
    for field in Adapters.model_fields:
        if getattr(spec.model.lora, field) is not None and field not in trained:
            yield Problem(f"{where}.{field}", f"{spec.algorithm} trains no {field}; remove it")
    yield from averaged(spec, graph)


def averaged(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Adapters of models of which the graph keeps a moving average."""
    for model in graph.averages:
        if spec.model.adapter(model.field) is not None:
            message = (
                f"the job keeps a moving average of the {model.field}, which is impossible with an adapter"
            )
            yield Problem(
                f"spec.model.lora.{model.field}", f"{message}; remove it, or referenceEma or valueEma"
            )


def without_base(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Models of a job's own graph that have no adapter to switch off."""
    based = (node.model for node in graph.prepare if isinstance(node, Infer) and node.base)
    for field in dict.fromkeys(model.field for model in based):
        if spec.model.adapter(field) is None:
            message = f"the graph of {spec.algorithm!r} infers with the {field} without its adapter"
            yield Problem(f"spec.model.lora.{field}", f"{message}; set it, or infer with the reference")
