"""Pinned configuration of a job, from its start until it is suspended or over; pure.

Its ConfigMap holds it verbatim: neither another release of the operator nor a changed spec changes the configuration of
a running job's processes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from rlhf_api.contract.run import RunConfig, of_file, shares_pod, with_digests
from rlhf_api.contract.teachers import shares_of
from rlhf_api.errors.messages import from_pydantic
from rlhf_api.estimate.resources import gpu_of
from rlhf_api.roles import Role
from rlhf_api.rules.check import CHANGEABLE
from rlhf_api.sections.pods import PodSettings, combine
from rlhf_api.spec import Spec

from ...job.names import common_labels
from ..config.settings import Defaults
from .pod_process import shares_node_network
from .pod_volumes import RESUME_CONFIG, START_CONFIG, WORKSPACE, carried_keys

DEFAULTS = "defaults.json"
"""Key of the operator's settings in the ConfigMap, beside the two configurations."""
_READABLE = 64 << 10
"""Maximum length of a text with indents, in bytes."""
_DIGEST = 32
"""Hexadecimal digits of a configuration's digest in its name, 128 bits: a changed spec of that name is taken for what
runs, and is not checked against limits again."""


class UnreadableConfig(Exception):
    """The ConfigMap of a running job is gone, or has content that this release cannot read."""


@dataclass(frozen=True)
class Pinned:
    """A configuration, the operator's defaults at its start, and its ConfigMap's name and content."""

    name: str
    config: RunConfig
    defaults: Defaults
    stored: Mapping[str, str] | None = None
    """Content of the ConfigMap that it was read from, which stays word for word; None if it was made here."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the files that the job carries, if it was made here; the configuration has only their digests."""

    @property
    def sends_bare_token(self) -> bool:
        """True for a job of release 0.1.0, whose trainer knows of no proof, in a network of its pods: what answers at
        the address of one is that pod's."""
        spec = self.config.spec
        return not self.defaults.release and not shares_node_network(combine(spec.pods, spec.trainer.pods))

    @property
    def texts(self) -> Mapping[str, str]:
        """Content of its ConfigMap, made at each call: kept for each job, it would be most of the operator's memory."""
        if self.stored is not None:
            return self.stored
        return {
            START_CONFIG: _text(_body(self.config)),
            RESUME_CONFIG: _text({**of_file(START_CONFIG), "resume": True}),
            DEFAULTS: _defaults_text(self.defaults),
            **{key: self.files[name] for name, key in carried_keys(self.config.spec).items()},
        }

    @classmethod
    def make(cls, job: str, spec: Spec, defaults: Defaults, uid: str = "") -> "Pinned":
        """Makes a pinned configuration. Its name does not depend on the number of generators, but on the job's `uid`:
        a later job of the same name and spec has a ConfigMap of its own."""
        config = RunConfig(
            job=job,
            spec=with_digests(immutable_part(spec)),
            workdir=f"{WORKSPACE}/runs/{job}",
            resume=spec.checkpoint.resume,
        )
        if shares_pod(spec):
            gpu = gpu_of(spec, Role.TRAINER)
            shared = {"shared_gpus": True, "shared_gpu_count": gpu.count if gpu else 0}
            config = config.model_copy(update=shared)
        any_number = config.model_copy(update={"spec": with_generators(config.spec, 1)})
        identity = uid + any_number.model_dump_json(by_alias=True) + _defaults_text(defaults)
        digest = hashlib.sha256(identity.encode()).hexdigest()
        return cls(f"{job}-config-{digest[:_DIGEST]}", config, defaults, files=spec.workspace.files)

    @classmethod
    def read(cls, config_map: Mapping[str, Any], defaults: Defaults) -> "Pinned":
        """Reads a ConfigMap; `defaults`: for a job started by a release that did not write them.

        Raises:
            UnreadableConfig: this release cannot read it.
        """
        name, texts = config_map["metadata"]["name"], dict(config_map.get("data") or {})
        of_then = defaults.model_copy(
            update={"release": "", "requests": False, "tmp_size_limit": None, "pod_security": None}
        )
        texts.setdefault(DEFAULTS, of_then.model_dump_json(by_alias=True, indent=1))
        try:
            config = RunConfig.model_validate_json(texts[START_CONFIG], extra="ignore")
            json.loads(texts[RESUME_CONFIG])
            config = config.model_copy(update={"spec": _with_pods(config.spec, _explicit_settings)})
            return cls(name, config, Defaults.model_validate_json(texts[DEFAULTS], extra="ignore"), texts)
        except (KeyError, ValueError) as error:
            raise UnreadableConfig(f"ConfigMap {name}: {_words(error)}") from None

    def scaled(self, generators: int) -> "Pinned":
        """The configuration for another number of generators, which the trainer waits for at its start; nothing else
        differs."""
        if self.config.spec.generator.replicas == generators:
            return self
        spec = with_generators(self.config.spec, generators)
        config = self.config.model_copy(update={"spec": spec})
        if self.stored is None:
            return replace(self, config=config)
        stored = dict(self.stored)
        for file in (START_CONFIG, RESUME_CONFIG):
            body = json.loads(stored[file])
            if "spec" in body:  # earlier releases stored it in both
                body["spec"].setdefault("generator", {})["replicas"] = generators
                stored[file] = _text(body)
        return replace(self, config=config, stored=stored)

    def config_map(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "labels": common_labels(self.config.job)},
            "data": dict(self.texts),
        }


def immutable_part(spec: Spec) -> Spec:
    """The spec without the fields that may change while the processes run, except the number of generators."""
    return spec.model_copy(update={name: Spec.model_fields[name].get_default() for name in CHANGEABLE})


def with_generators(spec: Spec, replicas: int) -> Spec:
    generator = spec.generator.model_copy(update={"replicas": replicas})
    return spec.model_copy(update={"generator": generator})


def shows_defaults(spec: Spec, role: Role) -> bool:
    """True if the role's pods run the default image."""
    return spec.pods_of(role).image is None


def defaults_of_0_1(pod: Mapping[str, Any]) -> Defaults:
    """Defaults of release 0.1.0, which did not store them, read from a pod that `shows_defaults`."""
    spec = pod["spec"]
    container = next(c for c in spec["containers"] if c["name"] == "role")
    volume: Mapping[str, Any] = next((v for v in spec.get("volumes", ()) if v["name"] == "workspace"), {})
    return Defaults(
        image=container["image"],
        image_pull_policy=container.get("imagePullPolicy"),
        workspace_claim=volume.get("persistentVolumeClaim", {}).get("claimName"),
        torchrun="rlhf_trainer.roles.gang",
    )


def _defaults_text(defaults: Defaults) -> str:
    body = defaults.model_dump(mode="json", by_alias=True)
    if defaults.runtime is None:
        del body["runtime"]
    else:
        body["runtime"]["spec"] = defaults.runtime.spec.model_dump(
            mode="json", by_alias=True, exclude_unset=True
        )
    return _text(body)


def _body(config: RunConfig) -> dict[str, Any]:
    """Content of the configuration's file. Of pods, only explicitly set fields: a role's settings override the job's,
    and a written default would do so too."""
    body = config.model_dump(mode="json", by_alias=True)
    places = [
        (body["spec"], config.spec.pods),
        *((body["spec"][role.value], own.pods) for role, own in config.spec.role_sections.items()),
    ]
    of_teachers = body["spec"]["distillation"]["teachers"]
    places += [
        (own, share.teacher.pods) for own, share in zip(of_teachers, shares_of(config.spec), strict=False)
    ]
    for section, pods in places:
        section["pods"] = pods.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return body


def _text(body: dict[str, Any]) -> str:
    """Readable JSON; without spaces if it is long, as these may be many times the rest."""
    text = to_json(body, indent=1)  # an indent makes json.dumps ten times as slow
    return (text if len(text) <= _READABLE else to_json(body)).decode()


def _explicit_settings(pods: PodSettings) -> PodSettings:
    """The pod settings without the defaults that earlier releases wrote into them."""
    if len(pods.model_fields_set) < len(PodSettings.model_fields):
        return pods
    return PodSettings.model_validate(pods.model_dump(by_alias=True, exclude_defaults=True))


def _with_pods(spec: Spec, change: Callable[[PodSettings], PodSettings]) -> Spec:
    """The spec with `change` applied to its pod settings and each role's."""
    changed = {
        role.value: own.model_copy(update={"pods": change(own.pods)})
        for role, own in spec.role_sections.items()
    }
    return spec.model_copy(update={"pods": change(spec.pods), **changed})


def _words(error: KeyError | ValueError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(map(str, from_pydantic(error, RunConfig).problems))
    return f"has no {error}" if isinstance(error, KeyError) else str(error)
