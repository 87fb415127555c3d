"""Rules of DeepSpeed's sections in `spec.trainer`: precision, the optimizer, keys without effect, averages."""

from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.alias_generators import to_camel, to_snake

from ...errors.problem import Problem, show
from ...graph import Graph
from ...sections.deepspeed import SECTIONS, DeepSpeedConfig, Section
from ...spec import Spec

OPTIMIZERS = ("adam", "adamw")
"""Types of DeepSpeed's optimizers whose state the trainer saves, in lower case."""


def precision(spec: Spec) -> Iterator[Problem]:
    for section, config in given_sections(spec):
        dtype, field = spec.trained_dtype(section.model), f"spec.trainer.{section.dtype}"
        for key, required in (("bf16", "bfloat16"), ("fp16", "float16")):
            given, where = getattr(config, key), section.where(f"{key}.enabled")
            if given is not None and given.enabled and dtype != required:
                yield Problem(
                    where,
                    f"the {section.model} computes in {dtype}; set {field} to {required} or drop this; got true",
                )
            if given is not None and not given.enabled and dtype == required:
                yield Problem(
                    where,
                    f"the optimizer of a {dtype} model would have no float32 weights; set {field} to "
                    "float32, or drop this; got false",
                )


def unread(spec: Spec) -> Iterator[Problem]:
    """Problems of keys that this trainer does not read."""
    for section, config in given_sections(spec):
        for name, instead in (
            ("steps_per_print", "metrics.jsonl has every step"),
            ("activation_checkpointing", "the models here are not made with DeepSpeed's checkpoints"),
        ):
            if getattr(config, name) is not None:
                yield Problem(section.where(name), f"has no effect ({instead}); remove it")


def optimizer(spec: Spec) -> Iterator[Problem]:
    """Problems of an optimizer other than Adam or AdamW, and of hyperparameters that `spec.optimizer` sets
    differently."""
    for section, config in given_sections(spec):
        if config.optimizer is None:
            continue
        if (kind := config.optimizer.type).lower() not in OPTIMIZERS:
            yield Problem(section.where("optimizer.type"), f"must be Adam or AdamW; got {show(kind)}")
        params = config.optimizer.params.model_dump(mode="json", exclude_none=True)
        own = spec.optimizer.model_dump(mode="json", exclude_defaults=True)
        if "lr" in params:
            message = f"is set by the job (spec.optimizer.{section.rate}); remove it"
            yield Problem(section.where("optimizer.params.lr"), message)
        for key, name in (("betas", "betas"), ("eps", "epsilon"), ("weight_decay", "weight_decay")):
            if name in own and params.get(key, own[name]) != own[name]:
                message = (
                    f"spec.optimizer.{to_camel(name)} is {show(own[name])}; make them equal, or remove one"
                )
                yield Problem(section.where(f"optimizer.params.{key}"), f"{message}; got {show(params[key])}")


def adam(spec: Spec) -> Iterator[Problem]:
    """Problems of parameters that the chosen Adam does not have."""
    for section, config in given_sections(spec):
        if config.optimizer is None:
            continue
        params, away = config.optimizer.params, config.zero_optimization.offload_optimizer
        own = not params.torch_adam
        on_cpu = own and away is not None and away.device != "none"
        for key, owner, has in (
            ("adam_w_mode", "Adam", config.optimizer.type.lower() == "adam"),
            ("bias_correction", "DeepSpeed's own Adam", own),
            ("fp32_optimizer_states", "DeepSpeed's own Adam on the CPU", on_cpu),
        ):
            if (value := getattr(params, key)) is not None and not has:
                message = f"is a setting of {owner} alone; remove it; got {show(value)}"
                yield Problem(section.where(f"optimizer.params.{key}"), message)


def disks(spec: Spec) -> Iterator[Problem]:
    """Problems of an offload to disks: without their path, or of an optimizer that only stage 3 offloads there."""
    for section, config in given_sections(spec):
        zero, stage = config.zero_optimization, config.stage(spec.trained_dtype(section.model))
        for name in ("offload_optimizer", "offload_param"):
            away, where = getattr(zero, name), section.where(f"zero_optimization.{name}")
            if away is None or away.device != "nvme":
                continue
            if away.nvme_path is None:
                yield Problem(f"{where}.nvme_path", "is needed for device nvme: a directory on the disk")
            if name == "offload_optimizer" and stage < 3:
                message = f"nvme needs zero_optimization.stage 3; use that, or cpu; got stage {stage}"
                yield Problem(f"{where}.device", message)


def switched_off(spec: Spec) -> Iterator[Problem]:
    """Problems of keys without effect: of a later ZeRO stage, of an offload without a device, of a precision that is
    off."""
    for section, config in given_sections(spec):
        zero, stage = config.zero_optimization, config.stage(spec.trained_dtype(section.model))
        for key in _given_keys(zero):
            later = key in _OF_STAGE_3 or key.startswith(_BEGIN_STAGE_3)
            least = 3 if later else 1 if key == "offload_optimizer" else 0
            if stage < least and getattr(getattr(zero, key), "device", "") != "none":
                message = f"has no effect below stage {least}: set zero_optimization.stage, or remove this"
                yield Problem(section.where(f"zero_optimization.{key}"), f"{message}; got stage {zero.stage}")
        parts = (
            ("zero_optimization.offload_param", zero.offload_param, "device"),
            ("zero_optimization.offload_optimizer", zero.offload_optimizer, "device"),
            ("bf16", config.bf16, "enabled"),
            ("fp16", config.fp16, "enabled"),
        )
        for name, part, switch in parts:
            if part is None or getattr(part, switch) not in ("none", False):
                continue
            for key in (key for key in _given_keys(part) if key != switch):
                message = (
                    f"has no effect: {switch} is {show(getattr(part, switch))}; set that, or remove this"
                )
                yield Problem(section.where(f"{name}.{key}"), f"{message}; got {show(getattr(part, key))}")


def averages(spec: Spec) -> Iterator[Problem]:
    yield from averaged(spec, spec.graph)


def averaged(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Problems of a moving average of weights that are offloaded to disk between forward passes: there is nothing in
    memory to average, and the model would compute with the newest weights in its place."""
    for model in graph.averages:
        away = spec.trained_deepspeed(model.field).zero_optimization.offload_param
        if away is not None and away.device == "nvme":
            own = model.field == "critic" and spec.trainer.critic_deepspeed is not None
            where = SECTIONS[own].where("zero_optimization.offload_param.device")
            message = f"the job keeps a moving average of the {model.field}, which is impossible with weights on disks"
            yield Problem(where, f"{message}; use cpu; got 'nvme'")


_OF_STAGE_3 = ("offload_param", "sub_group_size", "memory_efficient_linear", "log_trace_cache_warnings")
_BEGIN_STAGE_3 = ("stage3_", "zero_hpz_", "zero_quantized_")


def _given_keys(section: BaseModel) -> Iterator[str]:
    """Keys that are set to another value than null and false, as what false switches is off anyway."""
    for key in type(section).model_fields:
        value = getattr(section, key)
        if key in section.model_fields_set and value is not None and value is not False:
            yield key


def given_sections(spec: Spec) -> Iterator[tuple[Section, DeepSpeedConfig]]:
    """Yields each DeepSpeed configuration that the trainer's section gives."""
    for section in SECTIONS:
        config: DeepSpeedConfig | None = getattr(spec.trainer, to_snake(section.name))
        if config is not None:
            yield section, config
