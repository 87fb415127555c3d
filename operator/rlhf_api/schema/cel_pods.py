"""CEL rules of a job's pod settings."""

from ..rules.pods.settings import CONFIG_DIRECTORY, GPU_CLAIMED, MOUNTS, NOT_OVER, SOURCES, VOLUMES
from ..sections.pods import Gpu
from .cel_sections import Rule, or_default

_POD_SETTINGS = (
    Rule(
        "!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(w, w.mountPath == v.mountPath))",
        "volumes: two of them have the same mountPath",
    ),
    Rule(
        "!has(self.gpu) || !has(self.resources) || ["
        + ", ".join(
            f"has(self.resources.{kind}) ? self.resources.{kind} : {{}}" for kind in ("requests", "limits")
        )
        + f"].all(given, !({or_default(Gpu, 'resource', 'gpu')} in given))",
        "resources names what gpu.count asks for; remove one of them",
    ),
)
_GPU = (Rule("!has(self.resource) || !has(self.deviceClass)", f"{GPU_CLAIMED}; remove one of them"),)
_VOLUME = (
    Rule(
        f"[{', '.join(f'has(self.{source})' for source in SOURCES)}].exists_one(given, given)",
        f"a volume needs exactly one source of {', '.join(SOURCES)}",
    ),
    Rule(f"!(self.name in {list(VOLUMES)})", "name: the operator has a volume of that name"),
    Rule(
        f"!(self.mountPath in {[*MOUNTS, *NOT_OVER]}) && !self.mountPath.startsWith('{CONFIG_DIRECTORY}/')",
        "mountPath: every pod has something of its own there",
    ),
)
_TOLERATION = (
    Rule(
        "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
        "key is required unless operator is Exists, which then tolerates everything",
    ),
    Rule(
        "!has(self.value) || !has(self.operator) || self.operator != 'Exists'",
        "value: operator Exists takes none",
    ),
    Rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds is for effect NoExecute alone",
    ),
)

PODS: dict[str, tuple[Rule, ...]] = {
    "PodSettings": _POD_SETTINGS,
    "Gpu": _GPU,
    "Volume": _VOLUME,
    "Toleration": _TOLERATION,
}
"""Rules by model name."""
