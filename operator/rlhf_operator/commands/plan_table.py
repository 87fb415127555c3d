"""Formats the plan of a job; pure."""

from collections.abc import Iterator

from rlhf_api.contract.run import role_views, shares_pod
from rlhf_api.estimate.host_memory import StepMemory
from rlhf_api.estimate.resources import gpu_of, host_memory, lacks_gpus, plan
from rlhf_api.estimate.sharing.divide import divide
from rlhf_api.estimate.sizes import NOTHING, FileSizes, Sizes
from rlhf_api.roles import Role
from rlhf_api.rules.idle import list_idle_fields
from rlhf_api.rules.pods.placement import cluster_problems
from rlhf_api.spec import Spec

_HEAD = ("role", "pods", "GPUs", "memory of one GPU")


def plan_lines(spec: Spec, file_sizes: FileSizes = NOTHING) -> list[str]:
    """A table, then settings that would make the plan more precise (no table if the job gives neither GPUs nor sizes);
    the memory of a step's responses, if large; and settings that such a step cannot reach."""
    policy = file_sizes.get("policy")
    plans, responses = plan(spec, file_sizes), StepMemory.of(spec, policy.choices if policy else 0)
    last = [responses.line] if responses and responses.line else []
    last += [*filter(None, [lacks_gpus(spec, file_sizes)]), *list_idle_fields(spec)]
    if not any(each.gpus or each.memory for each in plans.values()):
        return last
    rows = [(role.value, str(each.pods), str(each.gpus), each.memory or "-") for role, each in plans.items()]
    widths = [max(len(row[i]) for row in (_HEAD, *rows)) for i in range(3)]
    return [
        *(f"{r:{widths[0]}}  {p:>{widths[1]}}  {g:>{widths[2]}}  {m}" for r, p, g, m in (_HEAD, *rows)),
        *_requested(spec),
        *_in_one_pod(spec, file_sizes),
        *_advice(spec, worked_out=any(each.memory for each in plans.values())),
        *last,
    ]


def _requested(spec: Spec) -> Iterator[str]:
    requests = [
        f"{role.value} {memory}" for role, view in role_views(spec) if (memory := host_memory(view, role))
    ]
    if requests:
        each = "container" if shares_pod(spec) else "pod"
        unless = "unless pods.resources says otherwise"
        yield f"on a cluster each {each} requests this memory, {unless}: {', '.join(requests)}"
    if spec.environment is not None:
        count, field = spec.environment.workers, "spec.trainer.pods.resources"
        yield f"the trainer's pod runs up to {count} processes of the environment too: add what they need to {field}"


def _in_one_pod(spec: Spec, file_sizes: FileSizes) -> Iterator[str]:
    """Of roles that share GPUs on a cluster: their pod, the division of its GPUs' memory, and what is refused there."""
    if not shares_pod(spec):
        return
    yield "on a cluster all roles are the trainer's one pod, with a container for each process (spec.placement shared)"
    gpu = gpu_of(spec, Role.TRAINER)
    if gpu is not None and gpu.memory_gigabytes is not None:
        division = divide(spec, Sizes.of(spec, file_sizes), gpu.memory_gigabytes * 1e9, gpu.count)
        yield from (f"on a cluster: {line}" for line in (division.lines if division else ()))
    yield from (f"on a cluster it is refused: {problem}" for problem in cluster_problems(spec))


def _advice(spec: Spec, *, worked_out: bool) -> Iterator[str]:
    gpus = [gpu for role, view in role_views(spec) if (gpu := gpu_of(view, role))]
    if not worked_out:
        yield "set spec.model.parameters, such as 7.6e9, to have the memory worked out"
    if any(gpu.memory_gigabytes is None for gpu in gpus):
        yield "set memoryGigabytes beside gpu.count to have it compared with what a GPU has"
