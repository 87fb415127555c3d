"""Rules of `spec.trainer`: micro-batches, the critic's settings, sequence parallelism."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ..contract.teachers import shares_of
from ..errors.problem import Problem, show
from ..graph import CRITIC
from ..sections.deepspeed import DeepSpeedConfig
from ..spec import Spec


def batches(spec: Spec) -> Iterator[Problem]:
    if not spec.graph.generates:
        return
    longest = spec.data.max_prompt_length + spec.longest_response
    field = "sampling.maxNewTokens" if spec.environment is None else "environment.maxTokens"
    shared = spec.trainer.sequence_parallel_size
    bounds = {
        "spec.trainer.microBatchTokens": (spec.trainer.micro_batch_tokens, shared),
        "spec.trainer.criticMicroBatchTokens": (spec.trainer.critic_micro_batch_tokens, shared),
        "spec.reward.microBatchTokens": (spec.reward.micro_batch_tokens, 1),
        "spec.reference.microBatchTokens": (spec.reference.micro_batch_tokens, 1),
        **{
            f"{each.where}.microBatchTokens": (each.teacher.micro_batch_tokens, 1) for each in shares_of(spec)
        },
    }
    for bound, (tokens, together) in bounds.items():
        if tokens is not None and tokens * together < longest:
            over = f", which {together} ranks share" if together > 1 else ""
            yield Problem(
                bound,
                f"one answer can have {longest} tokens (data.maxPromptLength + {field}){over}; "
                f"use at least {-(-longest // together)}; got {tokens}",
            )


def critic(spec: Spec) -> Iterator[Problem]:
    """Problems of settings of a critic, in a job without one."""
    if CRITIC in spec.graph.trained:
        return
    for name in ("critic_micro_batch_tokens", "critic_dtype", "critic_deepspeed"):
        given = getattr(spec.trainer, name)
        if given is not None:
            value = given.raw() if isinstance(given, DeepSpeedConfig) else given
            where = f"spec.trainer.{to_camel(name)}"
            yield Problem(where, f"{spec.algorithm} trains no critic; remove it; got {show(value)}")


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
    if size > 1 and any(model.head == "score" for model in spec.graph.trained):
        yield Problem(where, f"a reward model reads its score at one token alone; use 1; got {size}")
