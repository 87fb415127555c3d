"""Images of sequences as patches, packed, and the positions that they give the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .packed import ragged_index


@dataclass(frozen=True)
class Picture:
    """One image: float32 `patches` [P, D], `grid` of frames, rows and columns of patches, of which `merge` x `merge`
    are a token, and the place `start` of its first token in its prompt. `checksum`: of its pixels before it was scaled.
    """

    patches: Tensor
    grid: tuple[int, int, int]
    merge: int
    checksum: int
    start: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens that stand for it."""
        frames, rows, columns = self.grid
        return frames * rows * columns // self.merge**2


@dataclass(frozen=True)
class Images:
    """M images of N sequences: float32 `patches` [P, D] of each, int64 `grids` [M, 3], the frames, rows and columns of
    each one's patches, `starts` [M], the place in its sequence of each one's first token, and `counts` [N]. `merge` x
    `merge` patches are a token. All responses to a prompt share the tensors of its images."""

    patches: tuple[Tensor, ...]
    grids: Tensor
    starts: Tensor
    counts: Tensor
    merge: int

    @classmethod
    def of(cls, prompts: Sequence[Sequence[Picture]]) -> "Images | None":
        """The images of N prompts; None without any."""
        pictures = [picture for each in prompts for picture in each]
        if not pictures:
            return None
        return cls(
            tuple(picture.patches for picture in pictures),
            torch.tensor([picture.grid for picture in pictures]),
            torch.tensor([picture.start for picture in pictures]),
            torch.tensor([len(each) for each in prompts]),
            pictures[0].merge,
        )

    def __len__(self) -> int:
        return len(self.grids)

    def select(self, rows: Tensor) -> "Images":
        """The images of the sequences `rows` (int64 [n]), in that order."""
        images = ragged_index((self.counts.cumsum(0) - self.counts)[rows], self.counts[rows])
        return replace(
            self,
            patches=tuple(self.patches[i] for i in images.tolist()),
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
            tuple(each for images in present for each in images.patches),
            torch.cat([images.grids for images in present]),
            torch.cat([images.starts for images in present]),
            torch.cat(counts),
            present[0].merge,
        )

    def places(self, lengths: Tensor) -> Tensor:
        """The tokens of the sequences, of `lengths` [N], that stand for images: bool [sum(lengths)]. A response may
        have such a token that stands for none."""
        begins = torch.repeat_interleave(lengths.cumsum(0) - lengths, self.counts)
        places = torch.zeros(int(lengths.sum()), dtype=torch.bool)
        places[ragged_index(begins + self.starts, self.grids.prod(1) // self.merge**2)] = True
        return places

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
