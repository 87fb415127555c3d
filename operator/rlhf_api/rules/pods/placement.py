"""Rules of `spec.placement`."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ...contract.run import roles_of, shares_pod
from ...contract.teachers import shares_of
from ...errors.problem import Problem
from ...estimate.resources import gpu_of
from ...estimate.sharing.problems import problems, problems_without_sizes
from ...estimate.sizes import NOTHING, Sizes
from ...roles import Role
from ...sections.pods import Gpu
from ...spec import Spec

_OF_PROCESS = ("image", "image_pull_policy", "resources", "secrets", "model_cache")
"""Pod settings that each process of a shared pod has of its own."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def cluster_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of a job for a cluster, where processes that share GPUs are containers of one pod."""
    if not shares_pod(spec) or roles_of(spec) == (Role.TRAINER,):
        return
    if spec.trainer.replicas > 1:
        message = (
            "processes that share GPUs are one pod; use 1, with a process for each GPU (processesPerReplica)"
        )
        yield Problem("spec.trainer.replicas", f"{message}; got {spec.trainer.replicas}")
    if spec.generator.autoscale is not None:
        message = "no generator can be added to a shared pod; remove it, or use placement separate"
        yield Problem("spec.generator.autoscale", message)
    if Role.ENVIRONMENT in roles_of(spec):
        message = "environments are kept apart, and processes that share GPUs are one pod; use 0, or placement separate"
        where = "spec.environment.replicas"
        yield Problem(where, f"{message}; got {spec.section(Role.ENVIRONMENT).replicas}")
    if spec.pod_retention != "never":
        message = "a shared pod ends with its trainer; use never"
        yield Problem("spec.podRetention", f"{message}; got {spec.pod_retention!r}")
    own = {
        f"spec.{role.value}": spec.section(role).pods for role in roles_of(spec) if role is not Role.TRAINER
    }
    own |= {share.where: share.teacher.pods for share in shares_of(spec)}
    for section, pods in own.items():
        for name in sorted(pods.model_fields_set - {*_OF_PROCESS}):
            message = "is of the pod, which the roles share; set it in spec.pods or spec.trainer.pods"
            yield Problem(f"{section}.pods.{to_camel(name)}", message)
    yield from _gpu_problems(spec, gpu_of(spec, Role.TRAINER))


def _gpu_problems(spec: Spec, gpu: Gpu | None) -> Iterator[Problem]:
    if gpu is not None and _VISIBLE in spec.env:
        message = "is set for each process that shares GPUs; remove it"
        yield Problem(f"spec.env.{_VISIBLE}", f"{message}; got {spec.env[_VISIBLE]!r}")
    if gpu is not None and gpu.device_class is None:
        where = "spec.trainer.pods.gpu" if spec.trainer.pods.gpu is not None else "spec.pods.gpu"
        message = (
            "a device plugin gives a GPU to one container, and each process that shares it is in one of its own; "
            "claim it with deviceClass, which needs Kubernetes 1.34 or newer, or use placement separate"
        )
        yield Problem(where, f"{message}; got resource {gpu.resource!r}")
    count, sizes = gpu.count if gpu else 0, Sizes.of(spec, NOTHING)
    if gpu is None or gpu.memory_gigabytes is None or sizes.policy is None:
        yield from problems_without_sizes(spec, count)
    else:
        yield from problems(spec, sizes, gpu.memory_gigabytes * 1e9, count)
