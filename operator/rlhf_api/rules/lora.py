"""Rules of what is trained of a model: `spec.model.lora` and `spec.model.freeze`."""

from collections.abc import Iterator

from ..errors.problem import Problem, show
from ..graph import Graph, Infer
from ..sections.lora import Adapters, Lora
from ..spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of adapters of models that the job does not train, or of which it keeps a moving average."""
    if spec.model.lora is None:
        return
    graph, where = spec.graph, "spec.model.lora"
    if spec.model.lora == Adapters():
        yield Problem(where, "names no model: set policy or critic in it, or remove it")
    trained = {model.field for model in graph.trained}
    for field in Adapters.model_fields:
        if getattr(spec.model.lora, field) is not None and field not in trained:
            yield Problem(f"{where}.{field}", f"{spec.algorithm} trains no {field}; remove it")
    for field in Adapters.model_fields:
        adapter: Lora | None = getattr(spec.model.lora, field)
        if adapter is not None and adapter.rank_stabilized and adapter.alpha is None:
            message = "divides alpha by the root of the rank, and without one the scale is 1 either way"
            yield Problem(
                f"{where}.{field}.rankStabilized", f"{message}; set alpha, or remove this; got true"
            )
    yield from averaged(spec, graph)


def frozen(spec: Spec) -> Iterator[Problem]:
    """Problems of frozen parts of a policy that has an adapter, or that the job does not train."""
    if not spec.model.freeze:
        return
    given = f"got {show(list(spec.model.freeze))}"
    if spec.model.adapter("policy") is not None:
        message = (
            "an adapter of the policy freezes all of its weights; remove this, or spec.model.lora.policy"
        )
        yield Problem("spec.model.freeze", f"{message}; {given}")
    if all(model.field != "policy" for model in spec.graph.trained):
        yield Problem("spec.model.freeze", f"{spec.algorithm} trains no policy; remove it; {given}")


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
