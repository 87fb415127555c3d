"""Images of a row as text: what names each one, and the places of a conversation where they stand."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors.problem import kind_of

IMAGE = "\ue001"
"""An image's place in the content of a message: a private-use character, which text has no use for."""
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
    """The conversation with IMAGE in its contents for each `{"type": "image"}`, or where it names none, all before the
    text of the first message of the user. What is no conversation stays as it is, for its type to refuse. Raises
    ValueError for another number of images than the row has."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else joined(prompt)
    if not isinstance(messages, list):
        return prompt
    named = sum(_count(message) for message in messages)
    if named not in (0, images):
        raise ValueError(f"the row has {images} images, and its messages name {named}")
    first = next(
        (i for i, m in enumerate(messages) if isinstance(m, Mapping) and m.get("role") == "user"), None
    )
    if not named and first is not None and isinstance(messages[first].get("content"), str):
        content = IMAGE * images + messages[first]["content"]
        messages[first] = {**messages[first], "content": content}
    return messages


def joined(messages: Any) -> Any:
    """A conversation whose contents are text, of one whose contents may be lists of parts."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return messages
    return [
        {**message, "content": _text(message["content"])}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def split(content: str) -> list[dict[str, str]]:
    """The parts of a content with places of images, as chat templates read them: the inverse of `joined`."""
    first, *others = content.split(IMAGE)
    parts = [{"type": "text", "text": first}]
    for text in others:
        parts += [{"type": "image"}, {"type": "text", "text": text}]
    return [part for part in parts if part.get("text") != ""]


def _count(message: Any) -> int:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content.count(IMAGE) if isinstance(content, str) else 0


def _text(parts: Sequence[Any]) -> str:
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "image"):
            raise ValueError(f"a part of a message is of type text or image; got {kind!r}")
        text = IMAGE if kind == "image" else part.get("text")
        if not isinstance(text, str):
            raise ValueError(f"a part of type text has its text as text; got {kind_of(text)}")
        texts.append(text)
    return "".join(texts)
