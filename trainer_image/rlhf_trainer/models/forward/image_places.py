"""Places at which a model puts its features of images: the tokens that stand for them, and no others of their id."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def placing(model: Any, places: Tensor | None) -> Iterator[None]:
    """Has a forward pass put images at these `places`, bool [n, T], if there are any.

    Transformers takes every token of the id that stands for images. A policy may sample that one too; it is then a
    token like others, as it was to the engine.
    """
    if places is None:
        yield
        return
    inner = model.model

    def get_placeholder_mask(*_: object, **__: object) -> tuple[Tensor, Tensor]:
        return places[..., None], places.new_zeros(1)

    inner.get_placeholder_mask = get_placeholder_mask
    try:
        yield
    finally:
        del inner.get_placeholder_mask
