"""Images of sequences as patches, packed, and the positions that they give the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from .packed import ragged_index, to_device


@dataclass(frozen=True)
class Images:
    """M images of N sequences, end to end: float32 `patches` [sum of the images' patches, D], int64 `grids` [M, 3], the
    frames, rows and columns of each one's patches, `starts` [M], the place in its sequence of each one's first token,
    and `counts` [N]. `merge` x `merge` patches are a token."""

    patches: Tensor
    grids: Tensor
    starts: Tensor
    counts: Tensor
    merge: int

    def __len__(self) -> int:
        return len(self.grids)

    @cached_property
    def sizes(self) -> Tensor:
        """Number of patches of each image: int64 [M]."""
        return self.grids.prod(1)

    def select(self, rows: Tensor) -> "Images":
        """The images of the sequences `rows` (int64 [n]), in that order."""
        images = ragged_index((self.counts.cumsum(0) - self.counts)[rows], self.counts[rows])
        patches = ragged_index((self.sizes.cumsum(0) - self.sizes)[images], self.sizes[images])
        return replace(
            self,
            patches=self.patches[patches],
            grids=self.grids[images],
            starts=self.starts[images],
            counts=self.counts[rows],
        )

    @classmethod
    def join(cls, parts: Sequence[tuple["Images | None", int]]) -> "Images | None":
        """Concatenates the images of all parts, each with its number of sequences; None where no part has any."""
        present = [images for images, _ in parts if images is not None]
        if not present:
            return None
        counts = [torch.zeros(n, dtype=torch.int64) if i is None else i.counts for i, n in parts]
        return cls(
            torch.cat([images.patches for images in present]),
            torch.cat([images.grids for images in present]),
            torch.cat([images.starts for images in present]),
            torch.cat(counts),
            present[0].merge,
        )

    def position_ids(self, lengths: Tensor) -> Tensor:
        """Frame, row and column of every token of the sequences, of `lengths` [N], for rotary embeddings: int64
        [3, sum(lengths)].

        Text counts on in all three. The tokens of an image count from where the text before it ended, each by its
        place in the image; text goes on after the largest row or column (Wang et al. 2024, "Qwen2-VL",
        arXiv:2409.12191, section 2.1).
        """
        begins = lengths.cumsum(0) - lengths
        positions = ragged_index(torch.zeros_like(lengths), lengths).expand(3, -1).clone()
        owners = torch.repeat_interleave(torch.arange(len(lengths)), self.counts)
        merged = self.grids // torch.tensor([1, self.merge, self.merge])
        for grid, start, owner in zip(merged.tolist(), self.starts.tolist(), owners.tolist(), strict=True):
            first, end = int(begins[owner]) + start, int(begins[owner] + lengths[owner])
            after = first + grid[0] * grid[1] * grid[2]
            origin = int(positions[0, first])
            axes = torch.meshgrid(*map(torch.arange, grid), indexing="ij")
            positions[:, first:after] = torch.stack(axes).flatten(1) + origin
            positions[:, after:end] += max(grid[1:]) - (after - first)
        return positions

    def to(self, device: torch.device | str) -> Self:
        """The images with patches and grids on `device`."""
        return replace(self, patches=to_device(self.patches, device), grids=to_device(self.grids, device))
