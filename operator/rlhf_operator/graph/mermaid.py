"""A dataflow graph as a Mermaid flowchart: shapes by kind, colours by role, arrows labelled with columns."""

from collections.abc import Iterator
from itertools import cycle

from rlhf_api.graph import Compute, Dataset, Generate, Graph, Infer, Node, Score, Train
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

_SHAPES: dict[type[Node], tuple[str, str]] = {
    Generate: ("([", "])"),
    Dataset: ("[(", ")]"),
    Infer: ("[", "]"),
    Score: ("{{", "}}"),
    Compute: ("(", ")"),
    Train: ("[[", "]]"),
}

_INK = "#1f2933"
_FILLS_AND_LINES = (
    ("#e3eefb", "#0072b2"),
    ("#fdf1d6", "#d18f00"),
    ("#dff3ea", "#009e73"),
    ("#f7e4f0", "#cc79a7"),
    ("#fbe5d8", "#d55e00"),
    ("#e2f3fb", "#3f88c5"),
)
"""One pair per role, distinguishable with colour vision deficiency (Okabe and Ito 2008)."""


def mermaid(spec: Spec, graph: Graph) -> str:
    """The text of the flowchart of a job's graph, with the roles of its processes."""
    shared = spec.generator.shared_with_trainer
    roles = {node.name: _role(graph, node, shared=shared) for node in graph.nodes}
    ids = {node.name: f"n{i}" for i, node in enumerate(graph.nodes)}
    lines = ["flowchart TB"]
    lines += [f"    {ids[node.name]}{_box(node, roles[node.name])}" for node in graph.nodes]
    lines += [
        f'    {ids[writer]} -->|"{"<br/>".join(map(_text, columns))}"| {ids[reader]}'
        for writer, reader, columns in _arrows(graph)
    ]
    if isinstance(graph.source, Generate) and not shared:
        trains = next(node for node in graph.train if node.model == graph.source.model)
        lines.append(f'    {ids[trains.name]} -.->|"weights"| {ids[graph.source.name]}')
    lines += [
        f"    classDef {role.value} fill:{fill},stroke:{line},color:{_INK}"
        for role, (fill, line) in zip(Role, cycle(_FILLS_AND_LINES), strict=False)
        if role in roles.values()
    ]
    return "\n".join(lines)


def _role(graph: Graph, node: Node, *, shared: bool) -> Role:
    if isinstance(node, Generate):
        return Role.TRAINER if shared else Role.GENERATOR
    return graph.remote(node) or Role.TRAINER


def _box(node: Node, role: Role) -> str:
    begin, end = _SHAPES[type(node)]
    label = f"<b>{_text(node.name)}</b><br/>{_text(_does(node))}<br/><i>{role.value}</i>"
    return f'{begin}"{label}"{end}:::{role.value}'


def _does(node: Node) -> str:
    match node:
        case Generate():
            return f"sample from the {node.model.name}" + (", or take given responses" if node.given else "")
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


def _arrows(graph: Graph) -> Iterator[tuple[str, str, list[str]]]:
    """(writer, reader, columns) of each pair of nodes that columns connect."""
    writers = {column: node.name for node in graph.nodes for column in node.writes}
    for node in graph.nodes:
        columns_of: dict[str, list[str]] = {}
        for column in node.reads:
            columns_of.setdefault(writers[column], []).append(column)
        for writer, columns in columns_of.items():
            yield writer, node.name, columns


def _text(text: str) -> str:
    """Escapes characters that would end a quoted label or be read as HTML."""
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
