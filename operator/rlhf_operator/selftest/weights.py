"""Digests of a run's trained parameters, from its snapshots, read without torch."""

import hashlib
import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rlhf_api.estimate.model_files import tensor_entries

if TYPE_CHECKING:
    from rlhf_store.archive import Snapshot

_MASTER = "parameters/"
"""Prefix of the trained float32 parameters among a snapshot's tensors; optimizer moments have others."""

Digests = Mapping[str, str]
"""sha256 of each parameter, by `<model>/<name>`."""


def digests(snapshot: "Snapshot", models: Iterable[str]) -> Digests:
    """Digests of every trained parameter of these models. Raises DamagedSnapshot, and KeyError for a model that the
    snapshot lacks.
    """
    return {
        f"{model}/{name.removeprefix(_MASTER)}": digest
        for model in models
        for segment in snapshot.manifest.groups[model]
        for name, digest in of_file(snapshot.read(segment)).items()
        if name.startswith(_MASTER)
    }


def of_file(data: bytes) -> Digests:
    """Digests of every tensor of a safetensors file."""
    file = io.BytesIO(data)
    header = tensor_entries(file)
    body = memoryview(data)[file.tell() :]
    return {
        name: hashlib.sha256(body[slice(*about["data_offsets"])]).hexdigest()
        for name, about in header.items()
    }
