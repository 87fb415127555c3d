"""Layered layout of a drawing (Sugiyama et al. 1981): layers by longest path, columns that pass a layer as lanes,
crossings reduced by barycentres, then positions pulled to the mean of their neighbours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from rlhf_api.graph import Train

from .drawing import Drawing

SWEEPS = 24
GAP, LANE = 26.0, 10.0
"""Gap between two items of a layer, and width of a lane; in points."""


@dataclass(frozen=True)
class Item:
    """A box, or the lane in which a column passes the layer on its way to a later one."""

    box: str
    column: str | None = None


@dataclass(frozen=True)
class Layout:
    """Layers from top to bottom, the items of each from left to right, and the x of each item's middle in points."""

    layers: tuple[tuple[tuple[Item, float], ...], ...]
    links: tuple[tuple[tuple[int, Item], tuple[int, Item], str], ...]
    """(layer, item) above, (layer, item) below, and the column that goes from one to the other."""


def layout(drawing: Drawing, width: Callable[[str], float]) -> Layout:
    """Positions of all boxes; `width`: of each box by name, in points."""
    depth = depths(drawing)
    rows, links = _rows(drawing, depth)
    above, below = _neighbours(links)
    for sweep in range(SWEEPS):
        for i in range(1, len(rows)) if sweep % 2 == 0 else range(len(rows) - 2, -1, -1):
            other = rows[i - 1] if sweep % 2 == 0 else rows[i + 1]
            near = above if sweep % 2 == 0 else below
            rank = {item: n for n, item in enumerate(other)}
            own = {item: n for n, item in enumerate(rows[i])}
            rows[i].sort(key=lambda item: fmean([rank[o] for o in near.get((i, item), [])] or [own[item]]))
    places = _places(rows, above, below, lambda item: LANE if item.column else width(item.box))
    return Layout(
        tuple(tuple((item, places[i, item]) for item in row) for i, row in enumerate(rows)), tuple(links)
    )


def depths(drawing: Drawing) -> Mapping[str, int]:
    """Layer of each box by name: one more than the deepest that it reads from; training comes last."""
    depth: dict[str, int] = {}
    for box in drawing.boxes:  # in topological order
        depth[box.name] = max(
            (depth[a.writer] + 1 for a in drawing.arrows if a.reader == box.name), default=0
        )
    last = max(depth.values())
    return {box.name: last if box.kind is Train else depth[box.name] for box in drawing.boxes}


Place = tuple[int, Item]
Links = list[tuple[Place, Place, str]]


def _rows(drawing: Drawing, depth: Mapping[str, int]) -> tuple[list[list[Item]], Links]:
    rows: list[list[Item]] = [[] for _ in range(max(depth.values()) + 1)]
    for box in drawing.boxes:
        rows[depth[box.name]].append(Item(box.name))
    links: Links = []
    for box in drawing.boxes:
        for column in box.writes:
            readers = [a.reader for a in drawing.arrows if a.writer == box.name and column in a.columns]
            at = (depth[box.name], Item(box.name))
            deepest = max(depth[reader] for reader in readers)
            for layer in range(depth[box.name] + 1, deepest + 1):
                links += [(at, (layer, Item(reader)), column) for reader in readers if depth[reader] == layer]
                if layer < deepest:
                    lane = Item(box.name, column)
                    rows[layer].append(lane)
                    links.append((at, (layer, lane), column))
                    at = (layer, lane)
    return rows, links


Neighbours = Mapping[Place, list[Item]]


def _neighbours(links: Links) -> tuple[Neighbours, Neighbours]:
    above: dict[Place, list[Item]] = {}
    below: dict[Place, list[Item]] = {}
    for upper, lower, _ in links:
        above.setdefault(lower, []).append(upper[1])
        below.setdefault(upper, []).append(lower[1])
    return above, below


def _places(
    rows: list[list[Item]], above: Neighbours, below: Neighbours, width: Callable[[Item], float]
) -> dict[Place, float]:
    """x of all items' middles: placed side by side, then pulled to the mean of their neighbours without overlap."""
    places: dict[Place, float] = {}
    for i, row in enumerate(rows):
        total = sum(map(width, row)) + GAP * (len(row) - 1)
        x = -total / 2
        for item in row:
            places[i, item] = x + width(item) / 2
            x += width(item) + GAP
    for sweep in range(4 * SWEEPS):
        for i in range(len(rows)) if sweep % 2 == 0 else range(len(rows) - 1, -1, -1):
            targets = []
            for item in rows[i]:
                near = [places[i - 1, o] for o in above.get((i, item), [])]
                near += [places[i + 1, o] for o in below.get((i, item), [])]
                targets.append(fmean(near or [places[i, item]]))
            for item, x in zip(rows[i], spread(targets, [width(item) for item in rows[i]]), strict=True):
                places[i, item] = x
    return places


def spread(targets: list[float], widths: list[float]) -> list[float]:
    """Middles nearest to those wanted (least squares) with `GAP` between neighbours, in the order given.

    Pool adjacent violators on the middles less the room that stands before each.
    """
    before, rooms = 0.0, []
    for i, width in enumerate(widths):
        before += width / 2 + (widths[i - 1] / 2 + GAP if i else 0)
        rooms.append(before)
    pools: list[tuple[float, int]] = []
    for x, room in zip(targets, rooms, strict=True):
        mean, count = x - room, 1
        while pools and pools[-1][0] > mean:
            other, n = pools.pop()
            mean, count = (mean * count + other * n) / (count + n), count + n
        pools.append((mean, count))
    shifts = [mean for mean, count in pools for _ in range(count)]
    return [shift + room for shift, room in zip(shifts, rooms, strict=True)]
