"""Images of rows as a vision-language model reads them: patches, and as many tokens in the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from rlhf_api.errors.problem import InvalidJob, Problem

from . import images
from .encode import Encoded, TokensOf


@dataclass(frozen=True)
class Picture:
    """One image: float32 `patches` [P, D], `grid` of frames, rows and columns of patches, and the number of `tokens`
    that stand for it, from `start` on in its prompt."""

    patches: NDArray[np.float32]
    grid: tuple[int, int, int]
    tokens: int
    start: int = 0


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
        patches = np.asarray(made["pixel_values"], dtype=np.float32)
        return Picture(patches, (frames, rows, columns), frames * rows * columns // self.merge**2)

    def _size(self, max_pixels: int) -> dict[str, int]:
        own = self.processor.size
        return {"shortest_edge": min(own["shortest_edge"], max_pixels), "longest_edge": max_pixels}
