"""Images of a row: what names each one, and the places of a conversation where they stand."""

import base64
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..errors.problem import kind_of

PLACES = "image_places"
"""The field of a message with the offsets of its images."""
DATA = "data:;base64,"
"""Begins an image that a row holds itself, as base64."""


def image_bytes(data: bytes) -> str:
    """The bytes of an image's file as a row of JSON holds them."""
    return DATA + base64.b64encode(data).decode()


def references(given: Any) -> list[str]:
    """Path, URL or `DATA` of each image of a row's `images`, which may be a single one, and of which one may be an
    object with `bytes` or `path`, as Parquet files of the hub have them. Raises ValueError for anything else."""
    images = given if isinstance(given, list | tuple) else [given]
    return [_reference(image) for image in images]


def _reference(image: Any) -> str:
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes):
        return image_bytes(image)
    if not isinstance(image, str) or not image:
        message = "an image is a path, a URL, bytes, or an object with one of them as path or bytes"
        raise ValueError(f"{message}; got {kind_of(image)}")
    return image


def with_places(prompt: Any, images: int) -> Any:
    """The conversation as `joined` has it, with the images where it names them by `{"type": "image"}`, or, if it names
    none, all before the text of the first message of the user. What is no conversation stays as it is, for its type to
    refuse. Raises ValueError for another number of images than the row has."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else joined(prompt)
    if not isinstance(messages, list):
        return prompt
    named = sum(len(message[PLACES]) for message in messages if _has_places(message))
    if named not in (0, images):
        raise ValueError(f"the row has {images} images, and its messages name {named}")
    first = next(
        (i for i, m in enumerate(messages) if isinstance(m, Mapping) and m.get("role") == "user"), None
    )
    if not named and first is not None and isinstance(messages[first].get("content"), str):
        messages[first] = {**messages[first], PLACES: (0,) * images}
    return messages


def joined(messages: Any) -> Any:
    """A conversation whose contents are text, with the places of images beside it, of one whose contents may be lists
    of parts."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return messages
    return [
        {**message, **_text_and_places(message["content"])}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def split(content: str, places: Sequence[int]) -> list[dict[str, str]]:
    """The parts of a content with images at these offsets, as chat templates read them: the inverse of `joined`."""
    parts = list[dict[str, str]]()
    for start, end in pairwise((0, *places, len(content))):
        parts += [{"type": "text", "text": content[start:end]}, {"type": "image"}]
    return [part for part in parts[:-1] if part.get("text") != ""]


def _has_places(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get(PLACES), list | tuple)


def _text_and_places(parts: Sequence[Any]) -> dict[str, Any]:
    text, places = "", list[int]()
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "image"):
            raise ValueError(f"a part of a message is of type text or image; got {kind!r}")
        if kind == "image":
            places.append(len(text))
        elif isinstance(added := part.get("text"), str):
            text += added
        else:
            raise ValueError(f"a part of type text has its text as text; got {kind_of(added)}")
    return {"content": text, PLACES: tuple(places)}
