"""Resource plan of a job: pods, GPUs and memory of each role, computed before any pod starts; pure."""

from collections.abc import Iterator
from math import ceil

from ..contract.run import places, pod_roles, role_views, roles_of, shares_pod
from ..contract.status import RolePlan
from ..contract.teachers import role_field, shares_of, views_of
from ..errors.problem import Problem
from ..graph import CRITIC
from ..roles import UNTRUSTED, Role
from ..sections.pods import Gpu
from ..spec import Spec
from .memory import Need, count, gigabytes
from .remedies import CERTAIN, remedies
from .serving import Serving, filled, frozen_need, gpus, on_vllm
from .sizes import NOTHING, FileSizes, Sizes
from .trainer_memory import counted, trained, training

LARGE = 5e8
"""Parameters of a model that nobody trains on CPUs by intention."""


def plan(spec: Spec, file_sizes: FileSizes = NOTHING) -> dict[Role, RolePlan]:
    """Pods, GPUs and memory of each role; `file_sizes`: model sizes found by the host."""
    sizes, made = Sizes.of(spec, file_sizes), dict[Role, RolePlan]()
    for role in roles_of(spec):
        each = [(view, gpu_of(view, role), len(places(view, role))) for view in views_of(spec, role)]
        needs = [
            _memory(view, role, sizes.of_view(view), None if shares_pod(spec) else gpu)
            for view, gpu, _ in each
        ]
        names = [f"{share.teacher.name}: " for share in shares_of(spec)] if len(needs) > 1 else [""]
        own = role in pod_roles(spec)
        made[role] = RolePlan(
            pods=sum(pods for _, _, pods in each if own),
            gpus=sum(pods * gpu.count for _, gpu, pods in each if gpu and own),
            memory="; ".join(f"{name}{need}" for name, need in zip(names, needs, strict=True) if need)
            or None,
        )
    return made


def problems(spec: Spec, file_sizes: FileSizes = NOTHING) -> Iterator[Problem]:
    """Problems: GPU counts that do not match a pod's processes, and models that cannot fit their GPUs."""
    sizes = Sizes.of(spec, file_sizes).certain
    for role, view in () if shares_pod(spec) else role_views(spec):  # those that share are checked together
        gpu = gpu_of(view, role)
        if gpu is None:
            continue
        yield from _count(view, role, gpu)
        if gpu.memory_gigabytes is not None:
            yield from _fit(view, role, sizes.of_view(view), gpu.memory_gigabytes * 1e9)


def gpu_of(spec: Spec, role: Role) -> Gpu | None:
    """The GPUs of a role's pods, from the job's settings merged with the role's."""
    return spec.pods_of(role).gpu


def lacks_gpus(spec: Spec, file_sizes: FileSizes = NOTHING) -> str:
    """A warning of a large policy no pod of which asks for a GPU, or for other devices; '' for any other."""
    policy = Sizes.of(spec, file_sizes).policy
    given = [view.pods_of(role) for role, view in role_views(spec)]
    if policy is None or policy.parameters < LARGE or spec.runtime is not None:
        return ""
    if any(pods.gpu or pods.resources.requests or pods.resources.limits for pods in given):
        return ""
    return (
        f"warning: no pod asks for a GPU, so on a cluster {count(policy.parameters)} parameters are trained on "
        "CPUs; set spec.pods.gpu.count, or name a runtime that does"
    )


def host_memory(spec: Spec, role: Role) -> str | None:
    """Memory that a role's pod requests unasked, as a quantity: the least that its models need on CPUs. None if the
    manifest asks for resources, does not tell a model's size, or gives the pod GPUs, whose memory alone is known."""
    pods = spec.pods_of(role)
    if pods.gpu is not None or pods.resources.requests or pods.resources.limits:
        return None
    sizes = Sizes.of(spec, NOTHING).certain
    need = training(spec, sizes, CERTAIN) if role.row.work == "train" and sizes.policy else None
    need = need or _need(spec, role, sizes)
    if need is None:
        return None
    processes, _ = gpus_each(spec, role)
    return f"{ceil(processes * need.total / 2**20)}Mi"


def _memory(spec: Spec, role: Role, sizes: Sizes, gpu: Gpu | None) -> str | None:
    need = _need(spec, role, sizes)
    if need is None:
        return None
    memory = gpu.memory_gigabytes if gpu else None
    generates = role.row.work == "generate"
    on_top = "the KV cache" if on_vllm(spec, role) else "activations"
    without = "" if role.row.work == "train" and counted(trained(spec, sizes)) else f" without {on_top}"
    words = f"{gigabytes(need.total)}{f' of {memory:g}' if memory else ''} GB{without}: {need.words}"
    if generates:
        serving = Serving.of(spec, sizes)
        left = serving.kv_cache_bytes(memory * 1e9) if serving and memory else None
        return words + (f"; {gigabytes(left)} GB are left for the cache" if left and left > 0 else "")
    guessed = _guessed(spec, role, sizes)
    return words + (f"; {guessed} taken to be as large as the policy" if guessed else "")


def _need(spec: Spec, role: Role, sizes: Sizes) -> Need | None:
    match role.row.work:
        case "train":
            return training(spec, sizes) if sizes.policy else None
        case "generate":
            serving = Serving.of(spec, sizes)
            return serving.need if serving else None
        case "score" | "infer":
            size = sizes.frozen.get(role)
            return frozen_need(spec, role, size.parameters) if size else None
        case "play" | "run":
            return None


def _guessed(spec: Spec, role: Role, sizes: Sizes) -> str | None:
    """The role's model of unknown size, if any, with its verb."""
    if role.row.work == "train":
        name, size = "the critic is", sizes.critic if CRITIC in spec.graph.trained else None
    else:
        name, size = f"the {role.row.model} model is", sizes.frozen.get(role)
        if _has_several(spec, role):
            name = "each reward model of unknown size is"
    return name if size and size.guessed else None


def _has_several(spec: Spec, role: Role) -> bool:
    """True if each process of the role holds more than one model."""
    return role is Role.REWARD and len(spec.reward_models) > 1


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
            if on_vllm(spec, role):
                return gpus(spec.model_server(role))
            return 1, "its models share one" if _has_several(spec, role) else "it runs one model"
        case "play" | "run":
            return 0, "it runs no model"


def _count(spec: Spec, role: Role, gpu: Gpu) -> Iterator[Problem]:
    """One GPU per process that computes; reward functions and environments may use any number."""
    required, words = gpus_each(spec, role)
    any_number = role in UNTRUSTED or (role is Role.REWARD and spec.reward.functions)
    if gpu.count != required and not any_number:
        own = spec.section(role).pods.gpu is not None
        origin = f"got {gpu.count}" if own else f"spec.pods.gpu.count is {gpu.count}"
        where = f"{role_field(spec, role)}.pods.gpu.count"
        yield Problem(where, f"must be {required} for a {role.value} pod: {words}; {origin}")


def _fit(spec: Spec, role: Role, sizes: Sizes, memory: float) -> Iterator[Problem]:
    if role.row.work == "generate":
        serving = Serving.of(spec, sizes)
        if serving is not None:
            yield from serving.problems(memory)
        return
    need, share = _need(spec, role, sizes), filled(spec, role) if on_vllm(spec, role) else 1.0
    if need is None or need.total <= share * memory:
        return
    engine = f"{role_field(spec, role)}.engine vllm with a larger tensorParallelSize"
    remedy = f"use larger GPUs, a smaller model, or {engine}"
    if _has_several(spec, role):
        remedy = "use larger GPUs, or fewer or smaller reward models"
    if role.row.work == "train":
        if training(spec, sizes, CERTAIN).total <= memory:
            return
        remedy = remedies(spec, sizes, memory)
    shortage = f"one GPU must hold {gigabytes(need.total)} GB: {need.words}; it has {memory / 1e9:g} GB"
    shortage += f", of which vLLM fills {share:g}" if share < 1 else ""
    yield Problem(role_field(spec, role), f"{shortage}; {remedy}")
