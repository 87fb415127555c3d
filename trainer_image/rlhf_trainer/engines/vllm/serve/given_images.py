"""Qwen3-VL under vLLM with images as the trainer has read them, patches and their places: no processor of vLLM's runs.

So every prompt has the trainer's own tokens and pixels, and a server starts without Transformers' processor, which
needs torchvision: vLLM comes without that on CPUs.
"""

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import BatchFeature
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

if importlib.util.find_spec("torchvision") is None:  # vLLM's module imports a function that both have
    sys.modules.setdefault(
        "transformers.models.qwen2_vl.image_processing_qwen2_vl", image_processing_pil_qwen2_vl
    )

from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.multimodal.processing import BaseProcessingInfo

from .launch import PLACES, places_images

IMAGE = "image"
"""vLLM's name of the kind of input."""


def item_of(patches: Tensor, grid: Tensor) -> MultiModalKwargsItem:
    """One image as the model takes it: float32 `patches` [P, D], int64 `grid` [3]."""
    arrays = BatchFeature({"pixel_values": patches, "image_grid_thw": grid[None]})
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes(IMAGE, grid.prod()[None]),
        "image_grid_thw": MultiModalFieldConfig.batched(IMAGE, keep_on_cpu=True),
    }
    items: MultiModalKwargsItems[MultiModalKwargsItem] = MultiModalKwargsItems.from_hf_inputs(arrays, fields)
    return items[IMAGE][0]


class Limits(BaseProcessingInfo):
    """Limits of a prompt's images: any number, and each as long as a prompt."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {IMAGE: None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:  # noqa: ARG002
        return {IMAGE: seq_len}


class NoProcessor:
    """In place of what would read images: makes the one that vLLM measures its memory with, and refuses others."""

    def __init__(self, info: Limits, _dummy_inputs: None) -> None:
        self.info = info
        config = info.get_hf_config().to_dict()
        if not places_images(config):  # of a hub's model, which nobody has read before
            raise ValueError(f"spec.model.policy: {PLACES}")

    def get_dummy_mm_inputs(self, mm_counts: Mapping[str, int], **_more: object) -> MultiModalInput:  # noqa: ARG002
        config: Any = self.info.get_hf_config()
        vision, longest = config.vision_config, self.info.ctx.model_config.max_model_len
        grid = torch.tensor([1, vision.spatial_merge_size, vision.spatial_merge_size * longest])
        size = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return mm_input(
            [config.image_token_id] * longest,
            MultiModalKwargsItems({IMAGE: [item_of(torch.zeros(int(grid.prod()), size), grid)]}),
            {IMAGE: ["longest"]},
            {IMAGE: [PlaceholderRange(0, longest)]},
        )

    def apply(self, *_: object) -> NoReturn:
        raise ValueError("images come as patches, from the trainer; this server reads none itself")


@MULTIMODAL_REGISTRY.register_processor(
    NoProcessor,  # type: ignore[arg-type]
    info=Limits,
    dummy_inputs=lambda _info: None,  # type: ignore[arg-type]
)
class Qwen3VLOfPatches(Qwen3VLForConditionalGeneration):
    """vLLM's model, with images as they are given."""
