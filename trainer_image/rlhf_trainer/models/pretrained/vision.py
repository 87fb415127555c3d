"""Models that read images: their processor, their tokens, the part that is frozen."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoImageProcessor, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils.hub import cached_file

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.vision import policy_problems
from rlhf_api.sections.model import INTERLEAVED, VISION

from ...data.vision import ImageReader
from ...process.settings import model_source
from .files import from_pretrained, load_config
from .job_models import loading

FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Files of a processor beside its tokenizer's."""
TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
"""Tokens of a created model that reads images, by the fields of its configuration."""
MOST_TOKENS = 16384
"""Most tokens of an image for a created model."""


def load_reader(config: RunConfig) -> ImageReader | None:
    """Loads what reads the images of the job's policy; None for one that reads none. Raises InvalidJob for a job that
    is refused with such a policy, and for a processor that cannot be loaded."""
    source = model_source(config, "policy")
    model = loading(source.where, partial(load_config, source.path))
    if problems := [*policy_problems(config.spec, model.model_type)]:
        raise InvalidJob(problems)
    if model.model_type not in VISION:
        return None
    processor = loading(source.where, lambda: from_pretrained(AutoImageProcessor, source.path, backend="pil"))
    vision: Any = model
    merge = vision.vision_config.spatial_merge_size
    return ImageReader(processor, vision.image_token_id, merge, config.spec.data.max_pixels)


def freeze(model: PreTrainedModel) -> None:
    """Freezes the part that reads images, with what maps its output to embeddings."""
    if (part := vision_part(model)) is not None:
        part.requires_grad_(False)


def vision_part(model: nn.Module) -> nn.Module | None:
    """The part of a model of VISION that reads images; None of any other."""
    part = getattr(getattr(model, "model", None), "visual", None)
    return part if isinstance(part, nn.Module) else None


def created_config(
    config: Mapping[str, Any], text: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> Any:
    """The fields of a configuration that reads images: those of `text` are of its language model, unless `config` has
    others; its tokens are the tokenizer's. It says that the places of images are interleaved, as Transformers computes
    them whatever it says, and vLLM only then."""
    own = config.get("text_config", {})
    tokens = {field: tokenizer.convert_tokens_to_ids(token) for field, token in TOKENS.items()}
    language: dict[str, Any] = {**text, **(own if isinstance(own, Mapping) else {})}
    if isinstance(rope := language.get("rope_parameters"), Mapping):
        language["rope_parameters"] = {INTERLEAVED: True, **rope}
    return {**tokens, **config, "text_config": language}


def write_processor(config: PreTrainedConfig, directory: Path) -> None:
    """Writes the processor of a created model, for images of its patches, of at least one token."""
    vision: Any = config
    vision = vision.vision_config
    pixels = (vision.patch_size * vision.spatial_merge_size) ** 2
    Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size,
        temporal_patch_size=vision.temporal_patch_size,
        merge_size=vision.spatial_merge_size,
        size={"shortest_edge": pixels, "longest_edge": MOST_TOKENS * pixels},
    ).save_pretrained(directory)


def copy_processor(model: PreTrainedModel, directory: Path) -> None:
    """Copies the files of a processor from where the model was loaded, if that has any."""
    for name in FILES if vision_part(model) is not None else ():
        file = cached_file(
            str(model.name_or_path),
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if file is not None:
            shutil.copyfile(file, directory / name)
