"""Checks a job's pods, as they would be created, against an administrator's allow-lists; pure.

For clusters whose users may create RLHFJobs but not pods: `spec.pods` and its template can set everything that a pod
has. The chart's ValidatingAdmissionPolicy checks the manifest in the same way, on servers that support it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem, first, show

from ...job.baseline import as_list, as_object, forbidden, probed_hosts, unconfined
from ...job.names import PRIORITY, QUEUE
from ..config.limits import ANY, Limits, listed, names, refusal
from .gangs import GANGS
from .pinned import Pinned
from .placement_limits import check_placement
from .pod import NewPod, build_pod
from .pod_sets import pod_sets

Body = Mapping[str, Any]

_HOST = ("hostNetwork", "hostPID", "hostIPC")
_VOLUMES = ("configMap", "emptyDir", "persistentVolumeClaim", "hostPath", "image")
"""Sources of volumes that the operator's pods have, or that other limits are about."""


def check(limits: Limits | None, pinned: Pinned, own_image: str | None = None, *, whole: bool = True) -> None:
    """Raises InvalidJob with what the limits do not allow in the job's pods. `own_image` is always allowed;
    that of `pinned` unless given. `whole` is false if a runtime is yet to be joined, which may name the service
    account."""
    if limits is None:
        return
    if problems := first(_problems(limits, pinned, own_image or pinned.defaults.image, whole=whole)):
        raise InvalidJob(problems)


def _problems(limits: Limits, pinned: Pinned, own_image: str, *, whole: bool) -> Iterator[Problem]:
    scheduling = pinned.config.spec.scheduling
    if scheduling.queue:
        yield from listed("spec.scheduling.queue", scheduling.queue, limits.queues, "queues")
    for kind in pod_sets(pinned.config.spec):
        body = build_pod(pinned, NewPod(kind.role, kind.first, attempt=1, resume=False), uid="")
        pod = f"the {kind.role.value}'s pod:"
        yield from _pod(limits, pod, body, own_image, whole=whole)
        yield from check_placement(limits, pod, body, GANGS[scheduling.gang].scheduler)


def lacks_queue(limits: Limits | None, queue: str | None) -> Problem | None:
    """The problem of a job without a queue label where the limits require one; None without a problem."""
    if limits is None or not limits.require_queue or queue:
        return None
    message = "this cluster's limits require a queue; name one, as in `kubectl label rlhfjob NAME KEY=QUEUE`"
    return Problem(f"metadata.labels[{show(QUEUE)}]", message)


def wrong_priority(limits: Limits | None, priority: str | None) -> Problem | None:
    """The problem of a job whose label names a WorkloadPriorityClass that the limits do not list."""
    if limits is None or not priority:
        return None
    where = f"metadata.labels[{show(PRIORITY)}]"
    return next(listed(where, priority, limits.priority_classes, "priorityClasses"), None)


def _pod(limits: Limits, pod: str, body: Body, own_image: str, *, whole: bool) -> Iterator[Problem]:
    where, spec = f"{pod} spec", body["spec"]
    if not limits.privileged:
        yield from _settings(f"{where}.securityContext", as_object(spec.get("securityContext")))
        for key in unconfined(body["metadata"]):
            yield refusal(f"{pod} metadata.annotations[{show(key)}]", "unconfined", "privileged is false")
    accounts = {key: spec[key] for key in ("serviceAccountName", "serviceAccount") if spec.get(key)}
    for key, account in (accounts or ({"serviceAccountName": "default"} if whole else {})).items():
        yield from listed(f"{where}.{key}", account, limits.service_accounts)
    for key in _HOST:
        if spec.get(key) and not limits.host_network:
            yield refusal(f"{where}.{key}", spec[key], "hostNetwork is false")
    for volume in spec.get("volumes", ()):
        place = f"{where}.volumes[{show(volume['name'])}]"
        if (path := as_object(volume.get("hostPath")).get("path")) and not _below(
            str(path), limits.host_paths
        ):
            yield refusal(f"{place}.hostPath", path, f"hostPaths has {names(limits.host_paths)}")
        if image := as_object(volume.get("image")).get("reference"):
            yield from _image(f"{place}.image", str(image), limits)
        yield from _types(limits, place, volume)
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind, ()):
            place = f"{where}.{kind}[{show(container['name'])}]"
            if (image := str(container.get("image", ""))) != own_image:
                yield from _image(f"{place}.image", image, limits)
            yield from _container(limits, place, container)


def _types(limits: Limits, where: str, volume: Body) -> Iterator[Problem]:
    allowed = (*limits.volume_types, *_VOLUMES, "name")
    for kind in volume if ANY not in allowed else ():
        if kind not in allowed:
            rule = f"volumeTypes has {names(limits.volume_types)}"
            yield refusal(f"{where}.{kind}", volume[kind], rule)


def _container(limits: Limits, where: str, container: Body) -> Iterator[Problem]:
    secured, context = f"{where}.securityContext", as_object(container.get("securityContext"))
    if not limits.privileged:
        yield from _settings(secured, context)
        if (escalates := context.get("allowPrivilegeEscalation")) is not False:
            rule = "privileged is false, so it must be false, as it is by default"
            yield refusal(f"{secured}.allowPrivilegeEscalation", escalates, rule)
    yield from _capabilities(limits, f"{secured}.capabilities", context)
    if not limits.host_network:
        for port in map(as_object, as_list(container.get("ports"))):
            if port.get("hostPort"):
                yield refusal(f"{where}.ports.hostPort", port["hostPort"], "hostNetwork is false")
        for place, host in probed_hosts(container):
            rule = "hostNetwork is false, and the kubelet calls it from the node's network; remove it"
            yield refusal(f"{where}.{place}", host, rule)


def _settings(where: str, context: Body) -> Iterator[Problem]:
    for place, value, allowed in forbidden(context):
        rule = f"privileged is false, so it may be {' or '.join(show(each) for each in allowed)}"
        yield refusal(f"{where}.{place}", value, rule)


def _capabilities(limits: Limits, where: str, context: Body) -> Iterator[Problem]:
    """Capabilities of a container beyond the allowed ones; a privileged one has all of them, by another limit."""
    capabilities = as_object(context.get("capabilities"))
    for added in as_list(capabilities.get("add")):
        yield from listed(f"{where}.add", added, limits.capabilities)
    free = ANY in limits.capabilities or context.get("privileged")
    if not free and "ALL" not in as_list(dropped := capabilities.get("drop")):
        rule = f"capabilities has {names(limits.capabilities)}, so it must have ALL, as by default"
        yield refusal(f"{where}.drop", dropped, rule)


def _image(where: str, image: str, limits: Limits) -> Iterator[Problem]:
    if ANY not in limits.images and not any(_is_of(image, entry.rstrip("/")) for entry in limits.images):
        yield refusal(where, image, f"images has {names(limits.images)}")


def _is_of(image: str, entry: str) -> bool:
    """True for the entry, what lies below it, and its tags and digests: a port after a registry is another registry."""
    rest = image.removeprefix(entry)
    return image.startswith(entry) and (rest[:1] in ("", "/") or (rest[0] in ":@" and "/" not in rest))


def _below(path: str, allowed: Sequence[str]) -> bool:
    if ANY in allowed:
        return True
    within = any(f"{path.rstrip('/')}/".startswith(f"{top.rstrip('/')}/") for top in allowed)
    return within and ".." not in path.split("/")
