"""Changes of the settings with which a trainer that does not fit its GPUs would fit; pure."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from math import lcm
from typing import get_args

from ..sections.roles import MOST_PODS, GradientCheckpointing
from ..spec import Spec
from .memory import gigabytes, trainer
from .sizes import Sizes
from .trainer_memory import counted, largest_row, trained, training

CERTAIN = 0.9
"""Share of the estimated activations with which a job must not fit in order to be refused: the formula is right within
a tenth.
"""


def remedies(spec: Spec, sizes: Sizes, memory: float) -> str:
    """Suggested remedies: fewer activations; the smallest number of ranks for each ZeRO stage that needs fewer than
    those before it; or the optimizer on the CPU."""
    models, per_pod = trained(spec, sizes, CERTAIN), spec.trainer.processes_per_replica
    zeros, now = [model.zero for model in models], spec.trainer.ranks
    together = lcm(per_pod, spec.trainer.sequence_parallel_size)
    lowest, where = min(zero.stage for zero in zeros), ""
    if spec.trainer.critic_deepspeed is not None:
        where = " of deepspeed and criticDeepspeed both"

    def total(stage: int, ranks: int = now, *, away: bool = False) -> float:
        changed = [
            replace(z, stage=max(z.stage, stage), ranks=ranks, optimizer_away=away or z.optimizer_away)
            for z in zeros
        ]
        return trainer([replace(m, zero=z) for m, z in zip(models, changed, strict=True)]).total

    def enough(stage: int) -> int | None:
        """Smallest number of ranks, in whole pods and sequence groups and at least the present number, with which each
        rank's share fits its GPU."""
        choices = range(-(-now // together) * together, MOST_PODS * per_pod + 1, together)
        at = bisect_left(choices, True, key=lambda ranks: total(stage, ranks) <= memory)
        return choices[at] if at < len(choices) else None

    options, fewest = list(_fewer_activations(spec, sizes, memory)), MOST_PODS * per_pod + 1
    for stage in range(lowest, 4):
        ranks = enough(stage)
        if ranks is not None and ranks < fewest:
            fewest = ranks
            more = f"at least {ranks} ranks" if ranks > now else ""
            other = f"zero_optimization.stage {stage}{where}" if stage > lowest else ""
            options.append(" with ".join(part for part in (more, other) if part))
    for stage in range(max(1, lowest), 4):
        on_gpu = not all(zero.optimizer_away for zero in zeros)
        if fewest > now and on_gpu and total(stage, away=True) <= memory:
            other = f"zero_optimization.stage {stage} with " if stage > lowest else ""
            options.append(f"{other}offload_optimizer.device cpu{where}")
            break
    if options:
        return f"use {', or '.join(options)} (ranks are spec.trainer.replicas x processesPerReplica)"
    least = total(3, MOST_PODS * per_pod, away=True)
    return f"no number of ranks is enough: use GPUs of at least {gigabytes(least)} GB or a smaller model"


def _fewer_activations(spec: Spec, sizes: Sizes, memory: float) -> Iterator[str]:
    """Changes of the trainer's section with which the job fits, the first of each field."""
    section = spec.trainer

    def fits(field: str, value: object) -> bool:
        changed = spec.model_copy(update={"trainer": section.model_copy(update={field: value})})
        return training(changed, sizes, CERTAIN).total <= memory

    if not counted(trained(spec, sizes)):
        return
    kinds = get_args(GradientCheckpointing)
    for kind in kinds[kinds.index(section.gradient_checkpointing) + 1 :]:
        if fits("gradient_checkpointing", kind):
            yield f"trainer.gradientCheckpointing {kind}"
            break
    graph = spec.graph
    sampled = spec.data.max_prompt_length + spec.longest_response if graph.generates else 0
    longest = max(sampled, *(largest_row(spec, model) for model in graph.trained))
    tokens = section.micro_batch_tokens // 2
    while tokens * section.sequence_parallel_size >= longest:
        if fits("micro_batch_tokens", tokens):
            yield f"trainer.microBatchTokens {tokens}"
            break
        tokens //= 2
