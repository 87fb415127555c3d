"""The processes of a pod, and their settings: its own one, or those of all roles, each in a container; pure.

Processes that share GPUs share their pod: its network, its IPC namespace, in which they map each other's GPU memory,
and its claim of the GPUs. Each is a fault domain of its own: the kubelet starts a container that failed again, beside
the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.contract.run import place_named, places, process_name, roles_of, shares_pod
from rlhf_api.contract.teachers import view_of
from rlhf_api.roles import Role
from rlhf_api.rules.pods.template import CONTAINER
from rlhf_api.sections.pods import PodSettings
from rlhf_api.spec import Spec

from ...job.baseline import as_list, as_object
from .merge import merge
from .pod_container import Place

Body = dict[str, Any]

IN_ONE_POD = {"restartPolicy": "OnFailure", "shareProcessNamespace": True}
"""A pod's settings for processes that share it. CUDA maps the memory of a process whose id it can see alone."""


def processes_in(spec: Spec, role: Role, index: int, rank: int) -> list[Place]:
    """The processes of a pod, its own one first."""
    own = Place(role, index, rank)
    if not shares_pod(spec):
        return [own]
    others = [(other, i) for other in roles_of(spec) if other is not role for i, _ in places(spec, other)]
    return [own, *(Place(other, i, 0, process_name(other, i, 0)) for other, i in others)]


def process_settings(spec: Spec, role: Role) -> PodSettings:
    """Settings of a role's process. In a shared pod, volumes and GPUs are the pod's, which is the trainer's."""
    own = spec.pods_of(role)
    if not shares_pod(spec):
        return own
    pods = spec.pods_of(Role.TRAINER)
    return own.model_copy(update={"volumes": pods.volumes, "gpu": pods.gpu})


def with_templates(spec: Spec, containers: Sequence[Body]) -> list[Body]:
    """The containers of a shared pod, each other process's with what the template says of the role's container."""
    return [merge(each, _template_of(spec, each["name"])) for each in containers]


def _template_of(spec: Spec, name: str) -> Mapping[str, Any]:
    process = place_named(name)
    if process is None:
        return {}
    role, index = process
    template = as_object(view_of(spec, role, index).pods_of(role).template.get("spec"))
    given = [as_object(each) for each in as_list(template.get("containers"))]
    own = next((each for each in given if each.get("name") == CONTAINER), {})
    return {key: value for key, value in own.items() if key != "name"}
