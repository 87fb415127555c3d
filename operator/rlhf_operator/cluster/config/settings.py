"""The operator's own settings, from environment variables that the chart sets."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from rlhf_api.contract.run import TORCHRUN
from rlhf_api.errors.messages import from_pydantic
from rlhf_api.field_types import QUANTITY, Report
from rlhf_api.manifest.runtime import NamedRuntime

from .limits import Limits

_RELEASE = version("rlhf-operator")
_CONTEXT = TypeAdapter(dict[str, JsonValue])
_PEERS = TypeAdapter(list[dict[str, Any]])
_PRICES = TypeAdapter(dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]])


class Defaults(Report):
    """Pod settings of jobs without their own; a running job keeps those it started with."""

    image: str
    image_pull_policy: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    """Beside those of the job."""
    workspace_claim: str | None = None
    requests: bool = False
    """Pods on CPUs without requests ask for the memory that their models need."""
    tmp_size_limit: str | None = None
    """Of /tmp, a quantity."""
    pod_security: dict[str, JsonValue] | None = None
    """Security context of the pods in place of the operator's own."""
    torchrun: str = TORCHRUN
    """Module in the image that starts a trainer's ranks."""
    runtime: NamedRuntime | None = None
    """The referenced runtime; already merged into the spec, and kept here to detect the job's own changes."""
    release: str = ""
    """The operator's, whose defaults the fields have that the spec does not set."""


@dataclass(frozen=True)
class Settings:
    """Settings of one operator process."""

    trainer_image: str
    """Image of pods whose job names none."""
    token_key: bytes
    """Key from which, with the job's uid, each job's token is derived; the same for all replicas of the operator."""
    previous_token_key: bytes | None = None
    """Former key, of jobs whose tokens were derived before its rotation."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; all unless given."""
    own_namespace: str = "default"
    """Namespace of the operator and of its Lease."""
    identity: str = "operator"
    """Holder identity in the Lease: the pod's name."""
    workspace_claim: str | None = None
    """PersistentVolumeClaim, in their own namespaces, of jobs that name none."""
    image_pull_policy: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets with credentials for the image's registry, in the namespaces of jobs."""
    requests: bool = True
    """True if pods without requests ask for the memory of the plan."""
    tmp_size_limit: str | None = None
    """Of the pods' /tmp."""
    pod_security: dict[str, JsonValue] | None = None
    """Security context of the pods in place of the operator's own."""
    metrics_port: int = 8080
    """Prometheus metrics at /metrics and the probes' /healthz and /readyz."""
    review_metrics: bool = False
    """True if /metrics asks for a token, which the API server reviews."""
    webhook_port: int | None = None
    """Port of the admission webhook; none unless given."""
    webhook_certificates: str = "/etc/rlhf/webhook"
    """Directory of the webhook's tls.crt and tls.key."""
    metrics_from: tuple[dict[str, Any], ...] = ()
    """NetworkPolicy peers that may reach the HTTP port of jobs' pods, to scrape vLLM's metrics."""
    gpu_prices: Mapping[str, float] = field(default_factory=dict)
    """Price per GPU hour, by resource name."""
    limits: Limits | None = None
    """Allow-lists for jobs; none unless given."""
    keep_lost_pods: bool = False
    """True if a pod whose node does not confirm its end is left, and its name with it."""
    log_format: str = "json"
    """`json` or `text`."""

    @property
    def token_keys(self) -> tuple[bytes, ...]:
        """Keys of job tokens, the key of new ones first."""
        return (self.token_key, *([self.previous_token_key] if self.previous_token_key else []))

    @property
    def defaults(self) -> Defaults:
        """Defaults of jobs that start now."""
        return Defaults(
            image=self.trainer_image,
            image_pull_policy=self.image_pull_policy,
            image_pull_secrets=self.image_pull_secrets,
            workspace_claim=self.workspace_claim,
            requests=self.requests,
            tmp_size_limit=self.tmp_size_limit,
            pod_security=self.pod_security,
            release=_RELEASE,
        )

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Reads the environment. Raises ValueError for a missing or invalid variable."""

        def required(name: str) -> str:
            if not environ.get(name):
                raise ValueError(f"{name} is not set: the operator is started by its chart")
            return environ[name]

        def names(variable: str) -> tuple[str, ...]:
            return tuple(filter(None, environ.get(variable, "").split(",")))

        def port(name: str) -> int | None:
            text = environ.get(name)
            if text and not (text.isdecimal() and 0 < int(text) < 65536):
                raise ValueError(f"{name} must be a port; got {text!r}")
            return int(text) if text else None

        key = required("RLHF_TOKEN_KEY")
        previous = environ.get("RLHF_PREVIOUS_TOKEN_KEY") or ""
        for name, value in (("RLHF_TOKEN_KEY", key), ("RLHF_PREVIOUS_TOKEN_KEY", previous or key)):
            if len(value) < 32:
                raise ValueError(f"{name} must have at least 32 characters; got {len(value)}")
        metrics_port, webhook_port = port("RLHF_METRICS_PORT") or 8080, port("RLHF_WEBHOOK_PORT")
        if metrics_port == webhook_port:
            raise ValueError(f"RLHF_METRICS_PORT and RLHF_WEBHOOK_PORT must differ; both are {webhook_port}")
        log_format = environ.get("RLHF_LOG_FORMAT") or "json"
        if log_format not in ("json", "text"):
            raise ValueError(f"RLHF_LOG_FORMAT must be json or text; got {log_format!r}")
        return cls(
            trainer_image=required("RLHF_TRAINER_IMAGE"),
            token_key=key.encode(),
            previous_token_key=previous.encode() or None,
            namespaces=names("RLHF_NAMESPACES"),
            own_namespace=environ.get("POD_NAMESPACE") or "default",
            identity=environ.get("POD_NAME") or f"operator-{os.getpid()}",
            workspace_claim=environ.get("RLHF_WORKSPACE_CLAIM") or None,
            image_pull_policy=environ.get("RLHF_IMAGE_PULL_POLICY") or None,
            image_pull_secrets=names("RLHF_IMAGE_PULL_SECRETS"),
            requests=environ.get("RLHF_NO_REQUESTS") != "true",
            tmp_size_limit=_quantity("RLHF_TMP_SIZE_LIMIT", environ),
            pod_security=_security(environ.get("RLHF_POD_SECURITY_CONTEXT")),
            metrics_port=metrics_port,
            review_metrics=environ.get("RLHF_REVIEW_METRICS") == "true",
            webhook_port=webhook_port,
            webhook_certificates=environ.get("RLHF_WEBHOOK_CERTIFICATES") or "/etc/rlhf/webhook",
            metrics_from=_peers(environ.get("RLHF_METRICS_FROM")),
            gpu_prices=_prices(environ.get("RLHF_GPU_PRICES")),
            limits=_limits(environ.get("RLHF_LIMITS")),
            keep_lost_pods=environ.get("RLHF_KEEP_LOST_PODS") == "true",
            log_format=log_format,
        )


def _quantity(name: str, environ: Mapping[str, str]) -> str | None:
    text = environ.get(name) or None
    if text is not None and not re.match(QUANTITY, text):
        raise ValueError(f"{name} must be a Kubernetes quantity, such as 100Gi; got {text!r}")
    return text


def _security(text: str | None) -> dict[str, Any] | None:
    try:
        return _CONTEXT.validate_json(text) if text else None
    except ValidationError:
        message = 'must be JSON like {"runAsNonRoot": true}'
        raise ValueError(f"RLHF_POD_SECURITY_CONTEXT {message}; got {text!r}") from None


def _peers(text: str | None) -> tuple[dict[str, Any], ...]:
    """Parses NetworkPolicy peers. Address blocks that are invalid, or beside selectors, are rejected here, since the
    API server would refuse the policy and so every job's pods."""
    try:
        peers = _PEERS.validate_json(text or "[]")
        for peer in (peer for peer in peers if "ipBlock" in peer):
            if len(peer) > 1:
                raise ValueError("a peer with an ipBlock must have no other field")
            block = peer["ipBlock"]
            for network in (block["cidr"], *block.get("except", ())):
                ip_network(network)
    except (ValidationError, ValueError, LookupError, TypeError, AttributeError) as error:
        detail = "" if isinstance(error, ValidationError) else f" ({error})"
        message = f"RLHF_METRICS_FROM must be a JSON list of NetworkPolicy peers{detail}; got {text!r}"
        raise ValueError(message) from None
    return tuple(peers)


def _prices(text: str | None) -> dict[str, float]:
    try:
        return _PRICES.validate_json(text or "{}")
    except ValidationError:
        required = 'JSON like {"nvidia.com/gpu": 2.5}, with no price below 0'
        raise ValueError(f"RLHF_GPU_PRICES must be {required}; got {text!r}") from None


def _limits(text: str | None) -> Limits | None:
    if not text:
        return None
    try:
        return Limits.model_validate_json(text)
    except ValidationError as error:
        message = "; ".join(map(str, from_pydantic(error, Limits, ("RLHF_LIMITS",)).problems))
        raise ValueError(message) from None
