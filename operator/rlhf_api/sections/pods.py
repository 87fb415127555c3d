"""Pod settings of a manifest, for a cluster; ignored on one machine."""

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, JsonValue

from ..field_types import (
    AbsolutePath,
    Amount,
    CarriedName,
    CarriedText,
    Frozen,
    Label,
    Name,
    Positive,
    PositiveFloat,
    Quantity,
    SubPath,
)
from ..roles import UNTRUSTED, Role

_DECIMAL = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3} | {"kMGTPE"[i]: 1000.0 ** (i + 1) for i in range(6)}


class Gpu(Frozen):
    """The GPUs of one pod."""

    count: Positive
    resource: str = Field("nvidia.com/gpu", max_length=317)
    """The device plugin's resource name."""
    device_class: Name | None = None
    """DeviceClass from which they are claimed instead (Kubernetes 1.34 or newer)."""
    memory_gigabytes: PositiveFloat | None = None
    """Memory of one GPU, in units of 10^9 bytes; with it, memory is checked before any pod starts."""


class Resources(Frozen):
    """CPU, memory and other resources as Kubernetes quantities; GPUs are set in `gpu`."""

    requests: dict[str, Amount] = Field({}, max_length=32)
    limits: dict[str, Amount] = Field({}, max_length=32)


class Toleration(Frozen):
    """A Kubernetes toleration."""

    key: str | None = Field(None, max_length=317)
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = Field(None, max_length=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class Volume(Frozen):
    """A volume mounted into every pod of a role: exactly one source."""

    name: Label
    mount_path: AbsolutePath
    sub_path: SubPath | None = None
    read_only: bool = False
    claim: Name | None = None
    """A PersistentVolumeClaim."""
    config_map: Name | None = None
    secret: Name | None = None
    host_path: str | None = Field(None, pattern=r"^/", max_length=256)
    """A directory of the node; the `restricted` Pod Security Standard forbids it."""
    empty: Quantity | None = None
    """An emptyDir of at most this size."""


class PodSettings(Frozen):
    """Pod settings. A role's are merged over those of all roles."""

    image: str | None = Field(None, max_length=512)
    """The operator's trainer image unless given."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: tuple[Name, ...] = Field((), max_length=32)
    gpu: Gpu | None = None
    resources: Resources = Resources()
    node_selector: dict[str, Annotated[str, Field(max_length=63)]] = Field({}, max_length=32)
    tolerations: tuple[Toleration, ...] = Field((), max_length=32)
    priority_class: Name | None = None
    secrets: tuple[Name, ...] = Field((), max_length=32)
    """Secrets whose keys become environment variables: credentials of stores, hubs and trackers."""
    volumes: tuple[Volume, ...] = Field((), max_length=32)
    model_cache: AbsolutePath | None = None
    """A directory on a volume or in /workspace: hub models are downloaded to it once, before roles start, and loaded
    from there."""
    shared_memory: Quantity = "1Gi"
    """Size limit of /dev/shm, which NCCL and vLLM use; it counts towards the pod's memory."""
    template: dict[str, JsonValue] = {}
    """Any other part of a PodTemplateSpec, merged strategically over the operator's; the role's container is named
    `role`.
    """


_OF_ANY_CODE = frozenset(
    (
        "image",
        "image_pull_policy",
        "image_pull_secrets",
        "node_selector",
        "tolerations",
        "priority_class",
    )
)
"""Settings of all roles' pods that also those have whose code need not be trusted."""


class Workspace(Frozen):
    """Root of the manifest's relative paths and of the run's files, mounted at /workspace in every pod."""

    claim: Name | None = None
    """A PersistentVolumeClaim that all pods can mount; the operator's default unless given, else an empty
    directory of each pod's own."""
    sub_path: SubPath | None = None
    files: dict[CarriedName, CarriedText] = Field({}, max_length=64)
    """Texts of files by their names: code and rows that travel with the job. Roles find them by relative paths and
    as modules, before others of the same name."""


RuntimeKind = Literal["RLHFRuntime", "ClusterRLHFRuntime"]


class RuntimeReference(Frozen):
    """Reference to an administrator's pod settings, over which the job's own are merged
    (docs/guides/clusters/runtimes.md)."""

    name: Name
    kind: RuntimeKind = "ClusterRLHFRuntime"
    """`RLHFRuntime` is of the job's namespace."""


class Scheduling(Frozen):
    """Scheduler of the pods. A `kueue.x-k8s.io/queue-name` label on the job makes it wait for Kueue's admission."""

    gang: Literal["none", "kubernetes", "volcano", "coscheduling"] = "none"
    """All pods at once, by a PodGroup of Kubernetes 1.37 on, Volcano or scheduler-plugins."""
    queue: Name | None = None
    """Volcano's queue."""
    pre_running_deadline_seconds: Positive | None = None
    """The job fails, and releases its resources, if its trainer has not begun to train this long after the job's start
    or resume."""


Settings = TypeVar("Settings", bound=BaseModel)


def amount(quantity: Quantity) -> float:
    """A quantity as a number: 0.5 for `500m`, 1024.0 for `1Ki`."""
    number = re.match(r"[\d.]+(?:[eE][+-]?\d+)?", quantity)
    assert number is not None  # the pattern of Quantity
    suffix = quantity[number.end() :]
    factor = 1024.0 ** " KMGTPE".index(suffix[0]) if suffix.endswith("i") else _DECIMAL[suffix]
    return float(number[0]) * factor


def combine(job: PodSettings, role: PodSettings) -> PodSettings:
    """Merges a role's settings over the job's.

    Maps are merged recursively. Lists are concatenated, the role's last; a volume of the role replaces one of the same
    name or mount path. Any other field is the role's if the role sets it; null is a field left out, as on a cluster.
    """
    return over(job, role)


def shared_settings(pods: PodSettings, role: Role) -> PodSettings:
    """Of settings of all roles' pods, those that this role's have. Environments and sandboxes, whose code need not
    be trusted, have only what says where they run: no secrets, volumes, GPUs or templates; sandboxes not the image."""
    if role not in UNTRUSTED:
        return pods
    named = (pods.model_fields_set & _OF_ANY_CODE) - ({"image"} if role is Role.SANDBOX else set())
    return PodSettings().model_copy(update={name: getattr(pods, name) for name in named})


def over(under: Settings, above: Settings) -> Settings:
    """Merges settings over others of the same type, by the rules of `combine`."""
    combined: Settings = _over(under, above)
    return combined


def _over(under: Any, over: Any) -> Any:
    if isinstance(under, BaseModel) and isinstance(over, BaseModel):
        given = [name for name in over.model_fields_set if getattr(over, name) is not None]
        return under.model_copy(
            update={name: _over(getattr(under, name), getattr(over, name)) for name in given}
        )
    if isinstance(under, dict) and isinstance(over, dict):
        return under | {
            key: _over(under[key], value) if key in under else value for key, value in over.items()
        }
    if isinstance(under, tuple) and isinstance(over, tuple):
        return (*(item for item in under if not any(_same(item, other) for other in over)), *over)
    return over


def _same(item: Any, other: Any) -> bool:
    if isinstance(item, Volume) and isinstance(other, Volume):
        return item.name == other.name or item.mount_path == other.mount_path
    return bool(item == other)
