"""Rules of `spec.trainer`: micro-batches, sequence parallelism, precision, and DeepSpeed's keys."""

from collections.abc import Iterator

from .algorithms import graph_of
from .graph import CRITIC
from .problems import Problem
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
    """Settings of a critic in a job that trains none."""
    tokens = spec.trainer.critic_micro_batch_tokens
    if tokens is not None and CRITIC not in graph_of(spec).trained:
        where = "spec.trainer.criticMicroBatchTokens"
        yield Problem(where, f"{spec.algorithm} trains no critic; remove it; got {tokens}")


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
    dtype, deepspeed = spec.trainer.dtype or spec.model.dtype, spec.trainer.deepspeed
    for key, wanted in (("bf16", "bfloat16"), ("fp16", "float16")):
        section = getattr(deepspeed, key)
        if section is not None and section.enabled and dtype != wanted:
            yield Problem(
                f"spec.trainer.deepspeed.{key}.enabled",
                f"the trainer computes in {dtype}; set spec.trainer.dtype to {wanted} or drop this; got true",
            )
        if section is not None and not section.enabled and dtype == wanted:
            yield Problem(
                f"spec.trainer.deepspeed.{key}.enabled",
                f"the optimizer of a {dtype} model would have no float32 weights; set spec.trainer.dtype to float32, "
                "or drop this; got false",
            )


def deepspeed(spec: Spec) -> Iterator[Problem]:
    """Keys of DeepSpeed's that this trainer does not read."""
    config = spec.trainer.deepspeed
    for name, instead in (
        ("steps_per_print", "metrics.jsonl has every step"),
        ("activation_checkpointing", "the models here are not made with DeepSpeed's checkpoints"),
    ):
        if getattr(config, name) is not None:
            yield Problem(f"spec.trainer.deepspeed.{name}", f"has no effect ({instead}); remove it")
    if config.optimizer is not None and "lr" in config.optimizer.params:
        where = "spec.trainer.deepspeed.optimizer.params.lr"
        yield Problem(where, "is set by the job (spec.optimizer.learningRate); remove it")
