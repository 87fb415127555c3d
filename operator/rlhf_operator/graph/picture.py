"""Renders a drawing as a PNG: boxes in layers, each writer's columns as tags below it, lines in the tags' colours."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import Dataset, Generate, Train

from .drawing import Box, Drawing
from .layout import Item, Layout, layout
from .palette import COLUMNS, FAINT, FILL, INK, LINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOX, TAG, BETWEEN, MARGIN = 46.0, 15.0, 52.0, 30.0
"""Heights of a box and of its tags, gap between layers, and margin; in points."""
NAME, SMALL = 11.0, 8.5
"""Font sizes in points."""


def write_png(drawing: Drawing, file: Path) -> None:
    """Writes the PNG to `file`. Raises InvalidJob if it cannot, or matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        message = (
            "needs matplotlib, which is not installed; pip install matplotlib, or 'rlhf-operator[trainer]'"
        )
        raise InvalidJob([Problem("--png", message)]) from error
    boxes = {box.name: box for box in drawing.boxes}
    placed = layout(drawing, lambda name: _width(boxes[name]))
    picture = _Picture(drawing, placed, boxes)
    left, right, bottom, top = picture.frame
    figure = Figure(figsize=((right - left) / 72, (top - bottom) / 72), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    picture.draw(axes)
    try:
        figure.savefig(file, dpi=160, format="png")
    except OSError as error:
        raise InvalidJob([Problem("--png", f"{file} cannot be written: {error.strerror}")]) from error


@cache  # the layout asks for each thousands of times
def _text_width(text: str, size: float, *, bold: bool = False) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(weight="bold" if bold else "normal")
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().width)


def _tag_widths(box: Box) -> list[float]:
    return [_text_width(column, SMALL) + 12 for column in box.writes]


def _width(box: Box) -> float:
    words = max(_text_width(box.name, NAME, bold=True), _text_width(box.does, SMALL))
    tags = _tag_widths(box)
    return max(words + 28, sum(tags) + 4 * (len(tags) - 1), 96.0)


class _Picture:
    """Positions of all parts, in points, with y upwards from 0 at the first layer's top."""

    def __init__(self, drawing: Drawing, placed: Layout, boxes: dict[str, Box]) -> None:
        self._drawing, self._placed, self._boxes = drawing, placed, boxes
        self._x = {(i, item): x for i, row in enumerate(placed.layers) for item, x in row}
        columns = [column for box in drawing.boxes for column in box.writes]
        others = [column for column in columns if column != "sequences"]
        self._colour = {c: COLUMNS[i % len(COLUMNS)] for i, c in enumerate(others)} | {"sequences": FAINT}
        halves = [(x, _width(boxes[i.box]) / 2 if i.column is None else 5) for (_, i), x in self._x.items()]
        self._left, self._right = min(x - h for x, h in halves), max(x + h for x, h in halves)

    @property
    def frame(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the picture."""
        height = len(self._placed.layers) * (BOX + TAG + BETWEEN) - TAG - BETWEEN
        beside = 40 if self._drawing.broadcast else 0
        left, right = self._left - MARGIN - beside, self._right + MARGIN
        wider = max(0.0, self._legend_width() + 2 * MARGIN - (right - left)) / 2
        return left - wider, right + wider, -height - 64, 52

    def draw(self, axes: "Axes") -> None:
        for link in self._placed.links:
            self._link(axes, *link)
        for i, row in enumerate(self._placed.layers):
            for item, x in row:
                if item.column is None:
                    self._box(axes, self._boxes[item.box], x, self._top(i))
                else:
                    y = (self._top(i), self._top(i) - BOX - TAG)
                    axes.plot((x, x), y, color=self._colour[item.column], lw=1.5, zorder=1)
        self._broadcast(axes)
        self._legend(axes)

    def _top(self, layer: int) -> float:
        return -layer * (BOX + TAG + BETWEEN)

    def _box(self, axes: "Axes", box: Box, x: float, top: float) -> None:
        from matplotlib.patches import FancyBboxPatch

        width, fill, line = _width(box), FILL[box.place], LINE[box.place]
        corner = BOX / 2 if box.kind in (Generate, Dataset) else 6
        heavy = 2.6 if box.kind is Train else 1.3
        axes.add_patch(
            FancyBboxPatch(
                (x - width / 2, top - BOX),
                width,
                BOX,
                boxstyle=f"round,pad=0,rounding_size={corner}",
                fc=fill,
                ec=line,
                lw=heavy,
                zorder=3,
            )
        )
        centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
        axes.text(x, top - 0.35 * BOX, box.name, size=NAME, weight="bold", color=INK, **centred)
        axes.text(x, top - 0.72 * BOX, box.does, size=SMALL, color=INK, **centred)
        for column, (middle, size) in self._tags(box, x).items():
            colour = self._colour[column]
            axes.add_patch(
                FancyBboxPatch(
                    (middle - size / 2, top - BOX - TAG),
                    size,
                    TAG - 1,
                    boxstyle="round,pad=0,rounding_size=4",
                    fc="white",
                    ec=colour,
                    lw=1,
                    zorder=3,
                )
            )
            axes.text(middle, top - BOX - TAG / 2 - 1, column, size=SMALL, color=colour, **centred)

    def _tags(self, box: Box, x: float) -> dict[str, tuple[float, float]]:
        """Middle and width of each tag, side by side, in the order of their readers."""
        layer = next(i for i, item in self._x if item == Item(box.name))
        goes: dict[str, list[float]] = {}
        for upper, lower, column in self._placed.links:
            if upper == (layer, Item(box.name)):
                goes.setdefault(column, []).append(self._x[lower])
        widths = dict(zip(box.writes, _tag_widths(box), strict=True))
        start = x - (sum(widths.values()) + 4 * (len(widths) - 1)) / 2
        tags = {}
        for column in sorted(goes, key=lambda name: sum(goes[name]) / len(goes[name])):
            tags[column] = (start + widths[column] / 2, widths[column])
            start += widths[column] + 4
        return tags

    def _start(self, upper: tuple[int, Item], column: str) -> float:
        item, x = upper[1], self._x[upper]
        return x if item.column else self._tags(self._boxes[item.box], x)[column][0]

    def _end(self, lower: tuple[int, Item], upper: tuple[int, Item], column: str) -> float:
        """x at which a line ends: lines into one box end side by side, in the order of their origins."""
        if lower[1].column:
            return self._x[lower]
        into = sorted((self._start(u, c), c, u[1].box) for u, low, c in self._placed.links if low == lower)
        place = into.index((self._start(upper, column), column, upper[1].box))
        step = min(22.0, (_width(self._boxes[lower[1].box]) - 24) / max(1, len(into) - 1))
        return self._x[lower] + (place - (len(into) - 1) / 2) * step

    def _link(self, axes: "Axes", upper: tuple[int, Item], lower: tuple[int, Item], column: str) -> None:
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path as Curve

        x0, y0 = self._start(upper, column), self._top(upper[0]) - BOX - TAG
        x1, y1 = self._end(lower, upper, column), self._top(lower[0])
        bend = 0.5 * (y0 - y1)
        curve = Curve(
            [(x0, y0), (x0, y0 - bend), (x1, y1 + bend), (x1, y1)],
            [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
        )
        style = "-" if lower[1].column else "-|>,head_length=5,head_width=2.6"
        axes.add_patch(
            FancyArrowPatch(
                path=curve,
                arrowstyle=style,
                color=self._colour[column],
                lw=1.5,
                shrinkA=0,
                shrinkB=0,
                zorder=2,
            )
        )

    def _broadcast(self, axes: "Axes") -> None:
        """Line of the weights from training back to the generators, on the left."""
        if self._drawing.broadcast is None:
            return
        ends = {item.box: (i, x) for (i, item), x in self._x.items() if item.column is None}
        (low, x0), (high, x1) = ends[self._drawing.broadcast], ends[self._drawing.source]
        side = self._left - 26
        y0, y1 = self._top(low) - BOX / 2, self._top(high) - BOX / 2
        begin = x0 - _width(self._boxes[self._drawing.broadcast]) / 2
        end = x1 - _width(self._boxes[self._drawing.source]) / 2
        colour = LINE[self._boxes[self._drawing.source].place]
        axes.plot((begin, side, side), (y0, y0, y1), color=colour, lw=1.3, ls=(0, (4, 3)), zorder=1)
        axes.annotate(
            "",
            xy=(end, y1),
            xytext=(side, y1),
            arrowprops={
                "arrowstyle": "-|>",
                "color": colour,
                "lw": 1.3,
                "ls": (0, (4, 3)),
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=1,
        )
        axes.text(
            side - 5, (y0 + y1) / 2, "weights", size=SMALL, color=colour, rotation=90, ha="right", va="center"
        )

    def _legend_width(self) -> float:
        return sum(_text_width(role.value, SMALL) + 58 for role in self._drawing.places) - 36

    def _legend(self, axes: "Axes") -> None:
        from matplotlib.patches import FancyBboxPatch

        left, right, bottom, top = self.frame
        axes.text(
            (left + right) / 2,
            top - 24,
            self._drawing.title,
            size=14,
            weight="bold",
            color=INK,
            ha="center",
            va="center",
        )
        x = (left + right - self._legend_width()) / 2
        for role in self._drawing.places:
            axes.add_patch(
                FancyBboxPatch(
                    (x, bottom + 20),
                    16,
                    11,
                    boxstyle="round,pad=0,rounding_size=3",
                    fc=FILL[role],
                    ec=LINE[role],
                    lw=1.2,
                )
            )
            axes.text(x + 22, bottom + 25.5, role.value, size=SMALL, color=INK, va="center")
            x += _text_width(role.value, SMALL) + 58
