"""Rules of DeepSpeed's sections in `spec.trainer`: precision, keys without effect."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from .base import DType
from .deepspeed import DeepSpeedConfig
from .problems import Problem, show
from .spec import Spec


def precision(spec: Spec) -> Iterator[Problem]:
    for section in _sections(spec):
        whose, dtype, config = section.whose, section.dtype, section.config
        for key, wanted in (("bf16", "bfloat16"), ("fp16", "float16")):
            given, where = getattr(config, key), f"spec.trainer.{section.name}.{key}.enabled"
            if given is not None and given.enabled and dtype != wanted:
                yield Problem(
                    where,
                    f"the {whose} computes in {dtype}; set {section.dtype_field} to {wanted} or drop this; got true",
                )
            if given is not None and not given.enabled and dtype == wanted:
                yield Problem(
                    where,
                    f"the optimizer of a {dtype} model would have no float32 weights; set {section.dtype_field} to "
                    "float32, or drop this; got false",
                )


def unread(spec: Spec) -> Iterator[Problem]:
    """Keys that this trainer does not read."""
    for section in _sections(spec):
        config, where = section.config, f"spec.trainer.{section.name}"
        for name, instead in (
            ("steps_per_print", "metrics.jsonl has every step"),
            ("activation_checkpointing", "the models here are not made with DeepSpeed's checkpoints"),
        ):
            if getattr(config, name) is not None:
                yield Problem(f"{where}.{name}", f"has no effect ({instead}); remove it")
        if config.optimizer is not None and "lr" in config.optimizer.params:
            message = f"is set by the job (spec.optimizer.{section.rate}); remove it"
            yield Problem(f"{where}.optimizer.params.lr", message)


def switched_off(spec: Spec) -> Iterator[Problem]:
    """Keys of a part that is off: of a later stage, of no device, of another precision."""
    for section in _sections(spec):
        config, zero, where = section.config, section.config.zero_optimization, f"spec.trainer.{section.name}"
        stage = config.stage(section.dtype)
        for key in _given(zero):
            later = key in _OF_STAGE_3 or key.startswith(_BEGIN_STAGE_3)
            least = 3 if later else 1 if key == "offload_optimizer" else 0
            if stage < least and getattr(getattr(zero, key), "device", "") != "none":
                message = f"acts from stage {least} on: set zero_optimization.stage, or remove this"
                yield Problem(f"{where}.zero_optimization.{key}", f"{message}; got stage {zero.stage}")
        parts = (
            ("zero_optimization.offload_param", zero.offload_param, "device"),
            ("zero_optimization.offload_optimizer", zero.offload_optimizer, "device"),
            ("bf16", config.bf16, "enabled"),
            ("fp16", config.fp16, "enabled"),
        )
        for name, part, switch in parts:
            if part is None or getattr(part, switch) not in ("none", False):
                continue
            for key in (key for key in _given(part) if key != switch):
                message = (
                    f"has no effect: {switch} is {show(getattr(part, switch))}; set that, or remove this"
                )
                yield Problem(f"{where}.{name}.{key}", f"{message}; got {show(getattr(part, key))}")


_OF_STAGE_3 = ("offload_param", "sub_group_size", "memory_efficient_linear", "log_trace_cache_warnings")
_BEGIN_STAGE_3 = ("stage3_", "zero_hpz_", "zero_quantized_")


def _given(section: BaseModel) -> Iterator[str]:
    """Keys with a value; false is none, as what it switches is off anyway."""
    for key in type(section).model_fields:
        value = getattr(section, key)
        if key in section.model_fields_set and value is not None and value is not False:
            yield key


@dataclass(frozen=True)
class _Section:
    """A DeepSpeed configuration as the manifest gives it, and the fields that go with it."""

    name: str
    whose: str
    dtype_field: str
    rate: str
    dtype: DType
    config: DeepSpeedConfig


def _sections(spec: Spec) -> Iterator[_Section]:
    trainer, dtype = spec.trainer, spec.trained_dtype
    yield _Section(
        *("deepspeed", "trainer", "spec.trainer.dtype", "learningRate"), dtype("policy"), trainer.deepspeed
    )
    if trainer.critic_deepspeed is not None:
        yield _Section(
            *("criticDeepspeed", "critic", "spec.trainer.criticDtype", "criticLearningRate"),
            dtype("critic"),
            trainer.critic_deepspeed,
        )
