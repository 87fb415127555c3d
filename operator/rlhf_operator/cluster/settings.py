"""The operator's own settings, from its environment; the chart sets them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from rlhf_api.base import Report
from rlhf_api.problems import from_pydantic
from rlhf_api.run import TORCHRUN

from .limits import Limits

FIELD_MANAGER = "rlhf-operator"


class Defaults(Report):
    """Settings of pods whose job has none of its own; a running job keeps those that it began with."""

    image: str
    image_pull_policy: str | None = None
    workspace_claim: str | None = None
    torchrun: str = TORCHRUN
    """The module of the image that starts a trainer's ranks."""


@dataclass(frozen=True)
class Settings:
    """Settings of one operator process."""

    trainer_image: str
    """Image of pods whose job names none."""
    token_key: bytes
    """Each job's token is derived from this and the job's uid; the same for all replicas of the operator."""
    previous_token_key: bytes | None = None
    """That of jobs whose tokens were made before it was changed."""
    namespace: str | None = None
    """The one namespace to serve; all unless given."""
    own_namespace: str = "default"
    """Namespace of the operator and of its Lease."""
    identity: str = "operator"
    """This process in the Lease: its pod's name."""
    workspace_claim: str | None = None
    """The PersistentVolumeClaim, in their own namespaces, of jobs that name none."""
    image_pull_policy: str | None = None
    metrics_port: int = 8080
    """Prometheus metrics at /metrics and the probes' /healthz and /readyz."""
    webhook_port: int | None = None
    """The admission webhook's; none unless given."""
    webhook_certificates: str = "/etc/rlhf/webhook"
    """The directory of its tls.crt and tls.key."""
    limits: Limits | None = None
    """Allow-lists for jobs; none unless given."""
    log_format: str = "json"
    """`json` or `text`."""

    @property
    def token_keys(self) -> tuple[bytes, ...]:
        """The key of new tokens first."""
        return (self.token_key, *([self.previous_token_key] if self.previous_token_key else []))

    @property
    def defaults(self) -> Defaults:
        """For jobs that start now."""
        return Defaults(
            image=self.trainer_image,
            image_pull_policy=self.image_pull_policy,
            workspace_claim=self.workspace_claim,
        )

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Raises ValueError where a variable is missing or wrong."""

        def required(name: str) -> str:
            if not environ.get(name):
                raise ValueError(f"{name} is not set: the operator is started by its chart")
            return environ[name]

        def port(name: str) -> int | None:
            text = environ.get(name)
            if text and not text.isdigit():
                raise ValueError(f"{name} must be a port; got {text!r}")
            return int(text) if text else None

        key = required("RLHF_TOKEN_KEY")
        previous = environ.get("RLHF_PREVIOUS_TOKEN_KEY") or ""
        for name, value in (("RLHF_TOKEN_KEY", key), ("RLHF_PREVIOUS_TOKEN_KEY", previous or key)):
            if len(value) < 32:
                raise ValueError(f"{name} must have at least 32 characters; got {len(value)}")
        log_format = environ.get("RLHF_LOG_FORMAT") or "json"
        if log_format not in ("json", "text"):
            raise ValueError(f"RLHF_LOG_FORMAT must be json or text; got {log_format!r}")
        return cls(
            trainer_image=required("RLHF_TRAINER_IMAGE"),
            token_key=key.encode(),
            previous_token_key=previous.encode() or None,
            namespace=environ.get("RLHF_NAMESPACE") or None,
            own_namespace=environ.get("POD_NAMESPACE") or "default",
            identity=environ.get("POD_NAME") or f"operator-{os.getpid()}",
            workspace_claim=environ.get("RLHF_WORKSPACE_CLAIM") or None,
            image_pull_policy=environ.get("RLHF_IMAGE_PULL_POLICY") or None,
            metrics_port=port("RLHF_METRICS_PORT") or 8080,
            webhook_port=port("RLHF_WEBHOOK_PORT"),
            webhook_certificates=environ.get("RLHF_WEBHOOK_CERTIFICATES") or "/etc/rlhf/webhook",
            limits=_limits(environ.get("RLHF_LIMITS")),
            log_format=log_format,
        )


def _limits(text: str | None) -> Limits | None:
    if not text:
        return None
    try:
        return Limits.model_validate_json(text)
    except ValidationError as error:
        said = "; ".join(map(str, from_pydantic(error, Limits, ("RLHF_LIMITS",)).problems))
        raise ValueError(said) from None
