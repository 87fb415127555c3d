"""Rows of this example: a picture with some black cells, and how many they are. The same rows every time."""

import random
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from PIL import Image

CELLS, CELL = 4, 4
"""Cells in a row of a picture, and their pixels."""
MOST = 6
"""Squares in a picture, at most."""
TRAIN, HELDOUT = 3000, 200


class Rows(Sequence[Any]):
    """Rows of pictures that are drawn when they are read; `first`: the number of the first one."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        drawn = random.Random(self._first + index)
        count = drawn.randint(1, MOST)
        picture = draw(drawn.sample(range(CELLS * CELLS), count))
        return {"prompt": "how many squares?", "answer": f" {count}", "images": [picture]}


def draw(cells: Sequence[int]) -> bytes:
    """A PNG in which these cells are black, counted row by row."""
    picture = Image.new("RGB", (CELLS * CELL, CELLS * CELL), "white")
    for cell in cells:
        row, column = divmod(cell, CELLS)
        picture.paste("black", (column * CELL, row * CELL, (column + 1) * CELL, (row + 1) * CELL))
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def train() -> Rows:
    return Rows(0, TRAIN)


def heldout() -> Rows:
    return Rows(TRAIN, HELDOUT)


def right(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> list[float]:
    """1.0 for a response that is the number in its row, else 0.0. A reward gets the row's `images` too."""
    return [float(response == row["answer"]) for response, row in zip(responses, rows, strict=True)]
