"""Resource plan of a job: pods, GPUs and memory of each role, computed before any pod starts; pure."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

from .activations import Pass, backward_bytes
from .algorithms import graph_of
from .graph import CRITIC, POLICY, Model
from .memory import BYTES, Need, Trained, Zero, count, gigabytes, trainer
from .pods import Gpu, combine
from .problems import Problem
from .roles import GradientCheckpointing, ModelServerSpec, Role, RoleSpec
from .run import places, roles_of
from .serving import Serving, gpus, held, on_vllm
from .sizes import NOTHING, Found, Size, Sizes
from .spec import Spec
from .status import RolePlan

_MOST_PODS = 1000
"""Maximum of `replicas`."""
_CERTAIN = 0.9
"""Share of the estimated activations with which a job must not fit in order to be refused: the formula is right within
a tenth.
"""


def plan(spec: Spec, found: Found = NOTHING) -> dict[Role, RolePlan]:
    """Pods, GPUs and memory of each role; `found`: model sizes found by the host."""
    sizes, made = Sizes.of(spec, found), dict[Role, RolePlan]()
    for role in roles_of(spec):
        gpu, pods = gpu_of(spec, role), len(places(spec, role))
        memory = _memory(spec, role, sizes, gpu)
        made[role] = RolePlan(pods=pods, gpus=pods * gpu.count if gpu else 0, memory=memory)
    return made


def problems(spec: Spec, found: Found = NOTHING) -> Iterator[Problem]:
    """Problems: GPU counts that do not match a pod's processes, and models that cannot fit their GPUs."""
    sizes = Sizes.of(spec, found).certain
    for role in roles_of(spec):
        gpu = gpu_of(spec, role)
        if gpu is None:
            continue
        yield from _count(spec, role, gpu)
        if gpu.memory_gigabytes is not None:
            yield from _fit(spec, role, sizes, gpu.memory_gigabytes * 1e9)


def gpu_of(spec: Spec, role: Role) -> Gpu | None:
    """The GPUs of a role's pods, from the job's settings merged with the role's."""
    return combine(spec.pods, _section(spec, role).pods).gpu


def _section(spec: Spec, role: Role) -> RoleSpec:
    section: RoleSpec = getattr(spec, role.value)
    return section


def _memory(spec: Spec, role: Role, sizes: Sizes, gpu: Gpu | None) -> str | None:
    need = _need(spec, role, sizes)
    if need is None:
        return None
    memory = gpu.memory_gigabytes if gpu else None
    generates = role.row.work == "generate"
    on_top = "the KV cache" if on_vllm(spec, role) else "activations"
    without = "" if role.row.work == "train" and _counted(_trained(spec, sizes)) else f" without {on_top}"
    words = f"{gigabytes(need.total)}{f' of {memory:g}' if memory else ''} GB{without}: {need.words}"
    if generates:
        serving = Serving.of(spec, sizes)
        left = serving.left(memory * 1e9) if serving and memory else None
        return words + (f"; {gigabytes(left)} GB are left for the cache" if left and left > 0 else "")
    guessed = _guessed(spec, role, sizes)
    return words + (f"; the {guessed} is taken to be as large as the policy" if guessed else "")


def _need(spec: Spec, role: Role, sizes: Sizes) -> Need | None:
    match role.row.work:
        case "train":
            return _training(spec, sizes) if sizes.policy else None
        case "generate":
            serving = Serving.of(spec, sizes)
            return serving.need if serving else None
        case "score" | "infer":
            size = sizes.frozen.get(role)
            return held(spec, role, size.parameters) if size else None


def _training(spec: Spec, sizes: Sizes, share: float = 1.0) -> Need:
    """Memory of a trainer's rank, with this share of its activations, and with its moving averages."""
    need, total, parts = trainer(_trained(spec, sizes, share)), 0.0, []
    for model in graph_of(spec).averages:
        size, zero = getattr(sizes, model.field), Zero.of(spec, model.field)
        if size:
            ranks = zero.ranks if zero.stage == 3 else 1
            total += 4 * size.parameters / ranks
            over = f" / {ranks} ranks" if ranks > 1 else ""
            parts.append(f" + {count(size.parameters)} x 4 B of its moving average{over}")
    return Need(need.total + total, need.words + "".join(parts))


def _trained(spec: Spec, sizes: Sizes, share: float = 1.0) -> list[Trained]:
    """The models whose size is known, with this share of their activations where those of all are known."""
    found = []
    for model in graph_of(spec).trained:
        size = getattr(sizes, model.field)
        if size is not None:
            activations = _activations(spec, model, size)
            found.append(
                Trained(
                    size.parameters,
                    Zero.of(spec, model.field),
                    None if activations is None else share * activations,
                    frozen=spec.model.adapter(model.field) is not None,
                    gathers=model == POLICY
                    and graph_of(spec).generates
                    and spec.generator.shared_with_trainer,
                )
            )
    return found if _counted(found) else [replace(model, activations=None) for model in found]


def _counted(models: Sequence[Trained]) -> bool:
    """Activations are worked out: the widths of all models are known."""
    return bool(models) and all(model.activations is not None for model in models)


def _activations(spec: Spec, model: Model, size: Size) -> float | None:
    if size.shape is None:
        return None
    section, dtype = spec.trainer, spec.trained_dtype(model.field)
    tokens = section.micro_batch(model.field)
    run = Pass(tokens, BYTES[dtype], section.gradient_checkpointing, section.kernels != "torch")
    own_head = model.head == "causal" and spec.model.adapter(model.field) is None
    return backward_bytes(size.shape, run, head=own_head)


def _guessed(spec: Spec, role: Role, sizes: Sizes) -> str | None:
    """The role's model of unknown size, if any."""
    if role.row.work == "train":
        name, size = "critic", sizes.critic if CRITIC in graph_of(spec).trained else None
    else:
        name, size = f"{role.row.model} model", sizes.frozen.get(role)
    return name if size and size.guessed else None


def gpus_each(spec: Spec, role: Role) -> tuple[int, str]:
    """GPUs per pod or process of a role, and where the number comes from."""
    match role.row.work:
        case "train":
            ranks = spec.trainer.processes_per_replica
            return ranks, f"one for each process (spec.trainer.processesPerReplica {ranks})"
        case "generate":
            whole, words = gpus(spec.generator)
            pods = spec.generator.pods_per_replica
            return max(1, whole // pods), f"{words} / podsPerReplica {pods}" if pods > 1 else words
        case "score" | "infer":
            section: ModelServerSpec = getattr(spec, role.value)
            return gpus(section) if on_vllm(spec, role) else (1, "it runs one model")


def _count(spec: Spec, role: Role, gpu: Gpu) -> Iterator[Problem]:
    """One GPU per process that computes; reward functions may use any number."""
    wanted, words = gpus_each(spec, role)
    if gpu.count != wanted and not (role is Role.REWARD and spec.reward.functions):
        own = _section(spec, role).pods.gpu is not None
        seen = f"got {gpu.count}" if own else f"spec.pods.gpu.count is {gpu.count}"
        where = f"spec.{role.value}.pods.gpu.count"
        yield Problem(where, f"a {role.value} pod uses {wanted}: {words}; set {wanted}; {seen}")


def _fit(spec: Spec, role: Role, sizes: Sizes, memory: float) -> Iterator[Problem]:
    if role.row.work == "generate":
        serving = Serving.of(spec, sizes)
        if serving is not None:
            yield from serving.problems(memory)
        return
    need = _need(spec, role, sizes)
    if need is None or need.total <= memory:
        return
    remedy = (
        f"use larger GPUs, a smaller model, or spec.{role.value}.engine vllm with a larger tensorParallelSize"
    )
    if role.row.work == "train":
        if _training(spec, sizes, _CERTAIN).total <= memory:
            return
        remedy = _remedy(spec, sizes, memory)
    seen = f"one GPU must hold {gigabytes(need.total)} GB: {need.words}; it has {memory / 1e9:g} GB"
    yield Problem(f"spec.{role.value}", f"{seen}; {remedy}")


def _remedy(spec: Spec, sizes: Sizes, memory: float) -> str:
    """Suggested remedies: fewer activations; the smallest number of ranks for each ZeRO stage that needs fewer than
    those before it; or the optimizer on the CPU."""
    models, per_pod = _trained(spec, sizes, _CERTAIN), spec.trainer.processes_per_replica
    zeros, now = [model.zero for model in models], spec.trainer.ranks
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
        """The fewest ranks, in whole pods and no fewer than there are, of which each can hold its part."""
        choices = range(now, _MOST_PODS * per_pod + 1, per_pod)
        at = bisect_left(choices, True, key=lambda ranks: total(stage, ranks) <= memory)
        return choices[at] if at < len(choices) else None

    found, fewest = list(_fewer_activations(spec, sizes, memory)), _MOST_PODS * per_pod + 1
    for stage in range(lowest, 4):
        ranks = enough(stage)
        if ranks is not None and ranks < fewest:
            fewest = ranks
            more = f"at least {ranks} ranks" if ranks > now else ""
            other = f"zero_optimization.stage {stage}{where}" if stage > lowest else ""
            found.append(" with ".join(part for part in (more, other) if part))
    for stage in range(max(1, lowest), 4):
        on_gpu = not all(zero.optimizer_away for zero in zeros)
        if fewest > now and on_gpu and total(stage, away=True) <= memory:
            other = f"zero_optimization.stage {stage} with " if stage > lowest else ""
            found.append(f"{other}offload_optimizer.device cpu{where}")
            break
    if found:
        return f"use {', or '.join(found)} (ranks are spec.trainer.replicas x processesPerReplica)"
    least = total(3, _MOST_PODS * per_pod, away=True)
    return f"no number of ranks is enough: use GPUs of at least {gigabytes(least)} GB or a smaller model"


def _fewer_activations(spec: Spec, sizes: Sizes, memory: float) -> Iterator[str]:
    """Changes of the trainer's section with which the job fits, the first of each field."""
    section = spec.trainer

    def fits(field: str, value: object) -> bool:
        changed = spec.model_copy(update={"trainer": section.model_copy(update={field: value})})
        return _training(changed, sizes, _CERTAIN).total <= memory

    if not _counted(_trained(spec, sizes)):
        return
    kinds = get_args(GradientCheckpointing)
    for kind in kinds[kinds.index(section.gradient_checkpointing) + 1 :]:
        if fits("gradient_checkpointing", kind):
            yield f"trainer.gradientCheckpointing {kind}"
            break
    longest = spec.data.max_prompt_length + spec.sampling.max_new_tokens
    tokens = section.micro_batch_tokens // 2
    while tokens * section.sequence_parallel_size >= longest:
        if fits("micro_batch_tokens", tokens):
            yield f"trainer.microBatchTokens {tokens}"
            break
        tokens //= 2
