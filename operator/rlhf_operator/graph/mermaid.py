"""Renders a drawing as a Mermaid flowchart: shapes by kind, colours by role, arrows labelled with columns."""

from rlhf_api.graph import Compute, Dataset, Generate, Infer, Node, Score, Train
from rlhf_api.roles import Role

from .drawing import Box, Drawing
from .palette import FILL, INK, LINE

_SHAPES: dict[type[Node], tuple[str, str]] = {
    Generate: ("([", "])"),
    Dataset: ("[(", ")]"),
    Infer: ("[", "]"),
    Score: ("{{", "}}"),
    Compute: ("(", ")"),
    Train: ("[[", "]]"),
}


def mermaid(drawing: Drawing) -> str:
    """The text of the flowchart, with a line break at its end."""
    ids = {box.name: f"n{i}" for i, box in enumerate(drawing.boxes)}
    lines = ["flowchart TB"]
    lines += [f"    {ids[box.name]}{_shape(box)}:::{box.place.value}" for box in drawing.boxes]
    lines += [
        f'    {ids[arrow.writer]} -->|"{"<br/>".join(map(_text, arrow.columns))}"| {ids[arrow.reader]}'
        for arrow in drawing.arrows
    ]
    if drawing.broadcast is not None:
        lines.append(f'    {ids[drawing.broadcast]} -.->|"weights"| {ids[drawing.source]}')
    lines += [f"    classDef {role.value} {_style(role)}" for role in drawing.places]
    return "\n".join(lines) + "\n"


def _shape(box: Box) -> str:
    begin, end = _SHAPES[box.kind]
    return f'{begin}"<b>{_text(box.name)}</b><br/>{_text(box.does)}<br/><i>{box.place.value}</i>"{end}'


def _style(role: Role) -> str:
    return f"fill:{FILL[role]},stroke:{LINE[role]},color:{INK}"


def _text(text: str) -> str:
    """Escapes characters that would end a quoted label or be read as HTML."""
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
