"""Resources that a pod requests, from its body as it was built or is stored; pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_api.field_types import QUANTITY
from rlhf_api.sections.pods import amount

from .baseline import as_object
from .names import GPU_CLAIM

Body = Mapping[str, Any]
Amounts = dict[str, float]
"""By resource name."""

_GPU = re.compile(r"[^/]+/(gpu|gpu\.shared|mig|mig-[^/]+|gaudi|tpu)|(gpu|gaudi|tpu)\.[^/]+")
"""Resources, and drivers of allocated devices, that count as GPUs unasked: NVIDIA's, AMD's, Intel's, Google's."""


def requests(spec: Body) -> Amounts:
    """As the scheduler adds them up: of all containers, or of an init container that needs more than they together."""
    beside, most = Amounts(), Amounts()
    for init in spec.get("initContainers", ()):
        own = total((beside, _of_container(init)))
        if init.get("restartPolicy") == "Always":  # a sidecar, which stays
            beside = own
        else:
            most = {name: max(own.get(name, 0), most.get(name, 0)) for name in {*own, *most}}
    combined = total((beside, *map(_of_container, spec.get("containers", ()))))
    return {name: max(combined.get(name, 0), most.get(name, 0)) for name in sorted({*combined, *most})}


def total(each: Iterable[Mapping[str, float]]) -> Amounts:
    sums = Amounts()
    for amounts in each:
        for name, value in amounts.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def devices(spec: Body) -> tuple[tuple[str, int], ...]:
    """Devices that the pod holds, by the names of their resources."""
    return tuple((name, int(value)) for name, value in requests(spec).items() if _is_device(name) and value)


def claims(spec: Body, status: Body) -> tuple[str, ...]:
    """Names of the ResourceClaims of a stored pod, those that were made for it too, without that of `pods.gpu`."""
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses", ())}
    others = [each for each in spec.get("resourceClaims", ()) if each["name"] != GPU_CLAIM]
    named = (each.get("resourceClaimName") or made.get(each["name"]) for each in others)
    return tuple(name for name in named if name)


def only_devices(container: Body) -> dict[str, Any]:
    """The container's part that `devices` reads."""
    limits = as_object(as_object(container.get("resources")).get("limits"))
    device_limits = {name: value for name, value in limits.items() if _is_device(name)}
    policy = {"restartPolicy": container["restartPolicy"]} if "restartPolicy" in container else {}
    return {"resources": {"limits": device_limits}, **policy} if device_limits else {}


def is_gpu(name: str) -> bool:
    return _GPU.fullmatch(name) is not None


def _is_device(name: str) -> bool:
    """True for a resource of a device plugin."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def _of_container(container: Body) -> Amounts:
    resources = as_object(container.get("resources"))
    amounts = {**as_object(resources.get("limits")), **as_object(resources.get("requests"))}
    return {name: _number(value) for name, value in amounts.items()}


def _number(value: Any) -> float:
    """0 for what is no quantity, which the API server refuses."""
    return amount(str(value)) if re.match(QUANTITY, str(value)) else 0.0
