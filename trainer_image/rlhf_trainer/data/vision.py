"""Images of rows as a vision-language model reads them: patches, and as many tokens in the prompt."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.rows import ImageRow
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.data import Data
from rlhf_api.sections.model import VISION

from ..tensors.images import Picture
from . import images
from .chat import arguments_of
from .encode import Encoded, TokensOf, TooLong, encode, encode_prompt

IMAGES_OF = "images of "
"""Begins the name of a checksum of images, before that of their dataset."""


@dataclass(frozen=True)
class ImageReader:
    """Reads images by a model's own `processor`, to at most `max_pixels` if given. `token`: the id that the chat
    template writes for an image, which becomes one for each `merge` x `merge` patches."""

    processor: Any
    token: int
    merge: int
    max_pixels: int | None = None

    def read(self, references: Sequence[str]) -> list[Picture]:
        """The images of a row. Raises InvalidJob for one that cannot be read, is too large, or too narrow."""
        return [self._picture(reference) for reference in references]

    def tokens_of(self, tokenizer: PreTrainedTokenizerBase, pictures: Sequence[Picture]) -> TokensOf:
        """Tokenizes a rendered prompt with these images. Raises InvalidJob where the template wrote another number of
        places, or a text has such a token."""

        def expanded(rendered: str) -> list[int]:
            ids = list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
            if (places := ids.count(self.token)) != len(pictures):
                message = (
                    f"the chat template writes {places} of {tokenizer.convert_ids_to_tokens(self.token)!r} for "
                    f"{len(pictures)} images; give one that writes one for each, and no text with that token"
                )
                raise InvalidJob([Problem("spec.data.chatTemplate", message)])
            left = iter(pictures)
            return [i for i in ids for _ in range(next(left).tokens if i == self.token else 1)]

        return expanded

    def with_pictures(self, encoded: Encoded, pictures: Sequence[Picture]) -> Encoded:
        """The row with its images, each at its place. Raises InvalidJob for a text with the token of images."""
        starts, at = list[Picture](), 0
        for picture in pictures:
            at = encoded.prompt.index(self.token, at)
            starts.append(replace(picture, start=at))
            at += picture.tokens
        if self.token in (*encoded.prompt[at:], *encoded.response):
            raise InvalidJob(
                [Problem("spec.data", f"a text has the token of images, {self.token}; remove it")]
            )
        return replace(encoded, pictures=tuple(starts))

    def _picture(self, reference: str) -> Picture:
        try:
            image = images.read_image(reference)
            bounds = {} if self.max_pixels is None else {"size": self._size(self.max_pixels)}
            made = self.processor(images=[image], return_tensors="np", **bounds)
        except ValueError as error:
            raise images.problem(reference, error) from None
        frames, rows, columns = (int(size) for size in made["image_grid_thw"][0])
        patches = torch.from_numpy(np.asarray(made["pixel_values"], dtype=np.float32))
        return Picture(patches, (frames, rows, columns), self.merge, crc32(image.tobytes()))

    def _size(self, max_pixels: int) -> dict[str, int]:
        own = self.processor.size
        return {"shortest_edge": min(own["shortest_edge"], max_pixels), "longest_edge": max_pixels}


def encode_with_images(
    row: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    reader: ImageReader | None,
    *,
    answered: bool,
) -> Encoded:
    """A row's prompt with its images, and its answer where it is `answered`. A row with images is never cut: each of
    its tokens belongs to one of them, or asks about it. Raises InvalidJob for images without a `reader`."""
    arguments, longest = arguments_of(tokenizer, row, data), data.max_prompt_length
    references: Sequence[str] = row.images if isinstance(row, ImageRow) else ()
    if references and reader is None:
        message = f"a row has {len(references)} images, which policies of type {', '.join(VISION)} read"
        raise InvalidJob([Problem("spec.model.policy", f"{message}; take one of them")])
    pictures = reader.read(references) if reader else []
    tokens_of = reader.tokens_of(tokenizer, pictures) if reader and pictures else None
    limit = sys.maxsize if pictures else longest
    if answered:
        most = data.max_response_length
        made = encode(tokenizer, row.prompt, row.answer, limit, most, arguments, tokens_of=tokens_of)
    else:
        made = encode_prompt(tokenizer, row.prompt, limit, arguments, tokens_of=tokens_of)
    if len(made.prompt) > longest:
        raise TooLong(len(made.prompt), longest)
    return reader.with_pictures(made, pictures) if reader else made
