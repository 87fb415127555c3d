"""A teacher of `spec.distillation.teachers`."""

from typing import Literal

from pydantic import Field, JsonValue

from ..field_types import DType, Frozen, Positive, RewardName
from .pods import PodSettings
from .roles import MOST_PODS


class NamedTeacher(Frozen):
    """A model with its own processes in the reference role, whose settings it has unless given."""

    name: RewardName
    """What rows and sources call it."""
    model: str
    """Path or hub name."""
    replicas: int | None = Field(None, ge=1, le=MOST_PODS)
    dtype: DType | None = None
    micro_batch_tokens: Positive | None = None
    engine: Literal["transformers", "vllm"] | None = None
    tensor_parallel_size: Positive | None = None
    engine_arguments: dict[str, JsonValue] | None = None
    pods: PodSettings = PodSettings()
