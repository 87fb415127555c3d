"""An RLHFJob as a resource: its metadata and its spec."""

from typing import Literal

from .field_types import Frozen, JobName
from .spec import Spec

API_VERSION = "rlhf.dev/v1alpha1"
KIND = "RLHFJob"


class Metadata(Frozen):
    """The metadata fields used here; a cluster adds more."""

    name: JobName
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RLHFJob(Frozen):
    """An RLHF run as one resource."""

    api_version: Literal["rlhf.dev/v1alpha1"]
    kind: Literal["RLHFJob"]
    metadata: Metadata
    spec: Spec
