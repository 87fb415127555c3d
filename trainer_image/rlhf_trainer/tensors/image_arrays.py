"""Images as arrays of a message, each distinct one once: float32 `patches` [sum, D] end to end, int64 `image_grids`
[K, 3]; int64 `image` [M], of each image of the sequences its place among them, `image_starts` [M], and `image_counts`
[N]. `image_merge` [1]: as in `Images`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .images import Images


def images_to_arrays(images: Images) -> dict[str, Tensor]:
    """The arrays of images; responses to one prompt share the tensors of its own."""
    places: dict[int, int] = {}
    distinct = list[int]()
    for number, patches in enumerate(images.patches):
        if id(patches) not in places:
            places[id(patches)] = len(distinct)
            distinct.append(number)
    return {
        "patches": torch.cat([images.patches[number] for number in distinct]),
        "image_grids": images.grids[distinct],
        "image": torch.tensor([places[id(patches)] for patches in images.patches]),
        "image_starts": images.starts,
        "image_counts": images.counts,
        "image_merge": torch.tensor([images.merge]),
    }


def images_of_arrays(arrays: Mapping[str, Tensor], prompt_lengths: Tensor) -> Images | None:
    """Inverse of `images_to_arrays`, for prompts of these lengths; None without images. Raises ValueError for arrays
    that do not fit each other, or images beyond their prompts."""
    if "patches" not in arrays:
        return None
    try:
        patches, grids, image = arrays["patches"], arrays["image_grids"], arrays["image"]
        starts, counts, merge = arrays["image_starts"], arrays["image_counts"], int(arrays["image_merge"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"images lack an array: {error}") from None
    sizes = grids.prod(-1)
    fits = (
        all(each.dtype == torch.int64 for each in (grids, image, starts, counts))
        and (patches.dtype, patches.ndim) == (torch.float32, 2)
        and (grids.ndim, grids.shape[-1], merge > 0) == (2, 3, True)
        and image.shape == starts.shape == (int(counts.sum()),)
        and counts.shape == prompt_lengths.shape
        and not bool((grids < 1).any() or (counts < 0).any() or (starts < 0).any() or (image < 0).any())
        and not bool((image >= len(grids)).any())
        and int(sizes.sum()) == len(patches)
    )
    if not fits:
        raise ValueError("the images of a message do not fit their sequences, or their patches")
    ends = starts + sizes[image] // merge**2
    if bool((ends > prompt_lengths.repeat_interleave(counts)).any()):
        raise ValueError("an image of a message ends after its prompt")
    each = patches.split(sizes.tolist())
    return Images(tuple(each[i] for i in image.tolist()), grids[image], starts, counts, merge)
