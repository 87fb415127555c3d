"""Rules of `pods`, `workspace` and `scheduling`."""

from collections.abc import Iterator

from ...contract.teachers import shares_of
from ...errors.problem import Problem, path, show
from ...roles import UNTRUSTED, Role
from ...sections.pods import PodSettings, Toleration, Volume
from ...spec import Spec
from .template import template_problems

CONFIG_DIRECTORY = "/etc/rlhf"
MOUNTS = ("/tmp", "/dev/shm", "/workspace", CONFIG_DIRECTORY)
"""Mount points of volumes that the operator adds to every pod."""
VOLUMES = ("config", "tmp", "shared-memory", "workspace")
"""Names of those volumes."""
NOT_OVER = ("/dev", "/etc", "/proc", "/sys")
"""Directories that a container needs and no volume may cover."""
SOURCES = ("claim", "configMap", "secret", "hostPath", "empty")


GPU_CLAIMED = "deviceClass claims the GPUs in place of resource"


def pods(spec: Spec) -> Iterator[Problem]:
    yield from _settings("spec.pods", spec.pods)
    yield from _gpu_resource("spec.pods", spec.pods)
    for role in Role:
        section = spec.section(role)
        where = f"spec.{role.value}.pods"
        yield from _settings(where, section.pods, is_untrusted=role in UNTRUSTED)
        yield from _model_cache(spec, where, role)
        if section.pods.model_fields_set & {"gpu", "resources"}:
            yield from _gpu_resource(where, spec.pods_of(role))
    for share in shares_of(spec):
        where, own = f"{share.where}.pods", share.teacher.pods
        yield from _settings(where, own)
        yield from _model_cache(share.spec, where, Role.REFERENCE)
        if own.model_fields_set & {"gpu", "resources"}:
            yield from _gpu_resource(where, share.spec.pods_of(Role.REFERENCE))


def workspace(spec: Spec) -> Iterator[Problem]:
    names = spec.workspace.files.keys()
    for name in names:
        if inside := [other for other in names if other.startswith(f"{name}/")]:
            message = f"cannot be a file and the folder of {show(inside[0])}; rename one of them"
            yield Problem(path(("spec", "workspace", "files", name)), message)


def scheduling(spec: Spec) -> Iterator[Problem]:
    if spec.scheduling.queue is not None and spec.scheduling.gang != "volcano":
        yield Problem(
            "spec.scheduling.queue",
            f"is Volcano's; set spec.scheduling.gang to volcano, or put a job into a Kueue queue by the label "
            f"kueue.x-k8s.io/queue-name; gang is {spec.scheduling.gang}; got {show(spec.scheduling.queue)}",
        )


def _settings(where: str, settings: PodSettings, *, is_untrusted: bool = False) -> Iterator[Problem]:
    if settings.image is not None and not settings.image.strip():
        yield Problem(
            f"{where}.image", f"must be an image's name, or be left out; got {show(settings.image)}"
        )
    for i, volume in enumerate(settings.volumes):
        yield from _volume(f"{where}.volumes[{i}]", volume)
    yield from _twice(where, settings.volumes)
    for i, toleration in enumerate(settings.tolerations):
        yield from _toleration(f"{where}.tolerations[{i}]", toleration)
    yield from template_problems(f"{where}.template", settings.template, is_untrusted=is_untrusted)


def _volume(where: str, volume: Volume) -> Iterator[Problem]:
    given = volume.model_dump(by_alias=True, include={"claim", "config_map", "secret", "host_path", "empty"})
    named = [source for source in SOURCES if given[source] is not None]
    if len(named) != 1:
        source_names = ", ".join(named) or "none"
        yield Problem(where, f"needs exactly one source of {', '.join(SOURCES)}; got {source_names}")
    if volume.name in VOLUMES:
        yield Problem(
            f"{where}.name", f"the operator's own volume has this name; use another; got {show(volume.name)}"
        )
    mounted = volume.mount_path
    if mounted in MOUNTS or mounted.startswith(f"{CONFIG_DIRECTORY}/"):
        yield Problem(
            f"{where}.mountPath",
            f"the operator mounts its own volume there; use another; got {show(mounted)}",
        )
    elif mounted in NOT_OVER:
        yield Problem(
            f"{where}.mountPath", f"would hide what every container needs; use another; got {show(mounted)}"
        )


def _model_cache(spec: Spec, where: str, role: Role) -> Iterator[Problem]:
    """Checked for each role, since volume and cache may be set in different places; a runtime may add the volume."""
    own, settings = spec.section(role).pods, spec.pods_of(role)
    cache = settings.model_cache
    if cache is None or spec.runtime is not None:
        return
    writable = ["/workspace", *(v.mount_path for v in settings.volumes if not v.read_only)]
    if not any(f"{cache}/".startswith(f"{mounted.rstrip('/')}/") for mounted in writable):
        section = where if own.model_cache is not None else "spec.pods"
        mounts = ", ".join(writable)
        message = f"must lie on a volume that can be written ({mounts}), or each pod would fill its own"
        yield Problem(f"{section}.modelCache", f"{message}; got {show(cache)}")


def _twice(where: str, volumes: tuple[Volume, ...]) -> Iterator[Problem]:
    for i, volume in enumerate(volumes):
        before = volumes[:i]
        if volume.name in [v.name for v in before]:
            yield Problem(
                f"{where}.volumes[{i}].name", f"is another volume's name too; got {show(volume.name)}"
            )
        if volume.mount_path in [v.mount_path for v in before]:
            message = f"another volume is mounted there; use another; got {show(volume.mount_path)}"
            yield Problem(f"{where}.volumes[{i}].mountPath", message)


def _toleration(where: str, toleration: Toleration) -> Iterator[Problem]:
    if toleration.operator == "Equal" and toleration.key is None:
        yield Problem(
            f"{where}.key", "is required unless operator is Exists, which then tolerates everything"
        )
    if toleration.operator == "Exists" and toleration.value is not None:
        yield Problem(
            f"{where}.value", f"operator Exists takes no value; remove it; got {show(toleration.value)}"
        )
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield Problem(
            f"{where}.tolerationSeconds",
            f"applies only to effect NoExecute; remove it; got {toleration.toleration_seconds}",
        )


def _gpu_resource(where: str, settings: PodSettings) -> Iterator[Problem]:
    if settings.gpu is None:
        return
    if settings.gpu.device_class is not None and "resource" in settings.gpu.model_fields_set:
        yield Problem(
            f"{where}.gpu.resource", f"{GPU_CLAIMED}; remove one of them; got {show(settings.gpu.resource)}"
        )
    for kind in ("requests", "limits"):
        if settings.gpu.resource in getattr(settings.resources, kind):
            message = f"{settings.gpu.resource} is what gpu.count asks for; remove one of them"
            yield Problem(f"{where}.resources.{kind}", message)
