"""Rules of `spec.trainer`: micro-batches, sequence parallelism, precision, and DeepSpeed's keys."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from .algorithms import graph_of
from .base import DType
from .deepspeed import DeepSpeedConfig
from .graph import CRITIC
from .problems import Problem, show
from .spec import Spec


def batches(spec: Spec) -> Iterator[Problem]:
    if not graph_of(spec).generates:
        return
    longest = spec.data.max_prompt_length + spec.sampling.max_new_tokens
    shared = spec.trainer.sequence_parallel_size
    bounds = {
        "trainer.microBatchTokens": (spec.trainer.micro_batch_tokens, shared),
        "trainer.criticMicroBatchTokens": (spec.trainer.critic_micro_batch_tokens, shared),
        "reward.microBatchTokens": (spec.reward.micro_batch_tokens, 1),
        "reference.microBatchTokens": (spec.reference.micro_batch_tokens, 1),
    }
    for field, (tokens, together) in bounds.items():
        if tokens is not None and tokens * together < longest:
            over = f", which {together} ranks share" if together > 1 else ""
            yield Problem(
                f"spec.{field}",
                f"one answer can have {longest} tokens (data.maxPromptLength + sampling.maxNewTokens){over}; "
                f"use at least {-(-longest // together)}; got {tokens}",
            )


def critic(spec: Spec) -> Iterator[Problem]:
    """Settings of a critic in a job without one."""
    if CRITIC in graph_of(spec).trained:
        return
    for name in ("critic_micro_batch_tokens", "critic_dtype", "critic_deepspeed"):
        given = getattr(spec.trainer, name)
        if given is not None:
            seen = given.raw() if isinstance(given, DeepSpeedConfig) else given
            where = f"spec.trainer.{to_camel(name)}"
            yield Problem(where, f"{spec.algorithm} trains no critic; remove it; got {show(seen)}")


def sequence_parallel(spec: Spec) -> Iterator[Problem]:
    trainer = spec.trainer
    size, ranks = trainer.sequence_parallel_size, trainer.ranks
    where = "spec.trainer.sequenceParallelSize"
    if ranks % size:
        yield Problem(where, f"must divide the {ranks} ranks (replicas x processesPerReplica); got {size}")
    if size > 1 and trainer.attention == "padded":
        yield Problem(
            "spec.trainer.attention", f"{where} {size} needs packed sequences; use auto; got padded"
        )
    if size > 1 and any(model.head == "score" for model in graph_of(spec).trained):
        yield Problem(where, f"a reward model reads its score at one token alone; use 1; got {size}")


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


def deepspeed(spec: Spec) -> Iterator[Problem]:
    """DeepSpeed keys that this trainer does not read."""
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
