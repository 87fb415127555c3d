"""Drawing of a dataflow graph, independent of the output format: boxes by kind and place, arrows by columns."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_api.graph import Compute, Dataset, Generate, Graph, Infer, Node, Score, Train
from rlhf_api.roles import Role
from rlhf_api.spec import Spec


@dataclass(frozen=True)
class Box:
    """A node: its name, its operation, and the role that runs it; `writes`: only columns that another node reads."""

    name: str
    kind: type[Node]
    does: str
    place: Role
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Arrow:
    """Columns that `reader` takes from `writer`."""

    writer: str
    reader: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Drawing:
    """A graph to draw. `broadcast`: the training node whose weights go to the generators, if any."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    broadcast: str | None

    @property
    def places(self) -> tuple[Role, ...]:
        """Roles with a box, in the order of `Role`."""
        return tuple(role for role in Role if any(box.place is role for box in self.boxes))

    @property
    def source(self) -> str:
        """The name of the node that sequences come from."""
        return next(box.name for box in self.boxes if box.kind in (Generate, Dataset))


def drawing(title: str, spec: Spec, graph: Graph) -> Drawing:
    """The drawing of a job's graph, with the roles of its processes."""
    shared = spec.generator.shared_with_trainer
    arrows = tuple(_arrows(graph))
    read = {(arrow.writer, column) for arrow in arrows for column in arrow.columns}
    boxes = tuple(
        Box(
            name=node.name,
            kind=type(node),
            does=_does(node),
            place=_place(graph, node, shared=shared),
            writes=tuple(column for column in node.writes if (node.name, column) in read),
        )
        for node in graph.nodes
    )
    sampled = graph.source.model if isinstance(graph.source, Generate) and not shared else None
    broadcast = next((node.name for node in graph.train if node.model == sampled), None)
    return Drawing(title, boxes, arrows, broadcast)


def _arrows(graph: Graph) -> Iterator[Arrow]:
    writer = {column: node.name for node in graph.nodes for column in node.writes}
    for node in graph.nodes:
        taken: dict[str, list[str]] = {}
        for column in node.reads:
            taken.setdefault(writer[column], []).append(column)
        yield from (Arrow(name, node.name, tuple(columns)) for name, columns in taken.items())


def _place(graph: Graph, node: Node, *, shared: bool) -> Role:
    if isinstance(node, Generate):
        return Role.TRAINER if shared else Role.GENERATOR
    return graph.remote(node) or Role.TRAINER


def _does(node: Node) -> str:
    match node:
        case Generate():
            return f"sample from the {node.model.name}"
        case Dataset():
            return f"rows: {node.rows}"
        case Infer():
            return f"infer: {node.model.name}"
        case Score():
            return "score responses"
        case Compute():
            return f"compute: {_key(node.function)}"
        case Train():
            return f"train the {node.model.name}: {_key(node.loss)} loss"
    return ""


def _key(key: str) -> str:
    """A table's key, or the function's name in `module:name`."""
    return key.rpartition(":")[2]
