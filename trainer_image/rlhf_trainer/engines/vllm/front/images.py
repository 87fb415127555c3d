"""Requests with images as the engine takes them: the trainer's own tokens and patches, checked and never made anew."""

import base64
import binascii
import hashlib
from typing import Any

import torch

from ....transport.frames import Asked, AskedImage


def prompt_of(request: Asked, config: Any, weights: int | None) -> Any:
    """The prompt of a request, with its images; `config`: the model's configuration. Of other requests' keys, values
    and images the engine uses those of the same `weights`. Raises ValueError for images that do not stand
    at the first image tokens, in their order."""
    salt = f"weights {weights}"
    if not request.images:
        tokens = list(request.prompt)
        return {"type": "token", "prompt_token_ids": tokens, "cache_salt": salt}
    from vllm.inputs.engine import mm_input
    from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

    from ..serve.given_images import IMAGE, item_of

    merge, token = config.vision_config.spatial_merge_size, config.image_token_id
    items, hashes, places, expected = [], [], [], list[int]()
    for image in request.images:
        patches, grid = _tensors(image)
        length = int(grid.prod()) // merge**2
        items.append(item_of(patches, grid))
        hashes.append(hashlib.sha256(f"{salt} {image.grid} {image.patches}".encode()).hexdigest())
        places.append(PlaceholderRange(image.start, length))
        expected += range(image.start, image.start + length)
    # Behind the last image may be sampled ones, of a response that this request continues.
    there = [at for at, id_ in enumerate(request.prompt) if id_ == token and at <= max(expected)]
    if there != expected:
        message = f"the {len(items)} images of a prompt need {len(expected)} tokens {token} at their places"
        raise ValueError(f"{message}; got {len(there)}, or at others")
    return mm_input(
        list(request.prompt),
        MultiModalKwargsItems({IMAGE: items}),
        {IMAGE: hashes},
        {IMAGE: places},
        cache_salt=salt,
    )


def _tensors(image: AskedImage) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 patches [P, D] and int64 grid [3]. Raises ValueError where they do not fit."""
    try:
        data = bytearray(base64.b64decode(image.patches, validate=True))
        patches = torch.frombuffer(data, dtype=torch.float32)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the patches of an image are no float32 as base64: {error}") from None
    grid = torch.tensor(image.grid)
    if grid.min() < 1 or len(patches) % int(grid.prod()):
        raise ValueError(f"{len(patches)} numbers are not the patches of an image of {image.grid}")
    return patches.view(int(grid.prod()), -1), grid
