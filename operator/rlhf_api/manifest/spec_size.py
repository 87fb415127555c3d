"""Size limits of a job: of its spec as written, and of its spec with every default, which its processes read.

Whoever may create jobs shares one operator with everybody else: what it reads, keeps and builds of a job is
proportional to its spec. Of a larger one the operator keeps what `cut` leaves.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ..errors.problem import Problem

MOST_BYTES = 256 << 10
"""Maximum size of a spec, in bytes of JSON without spaces."""
MOST_COMPLETE_BYTES = 640 << 10
"""Maximum size of a spec with its defaults: with a runtime it fits into one ConfigMap, which may have 1 MiB."""
CUT = "specBytes"
"""Key beside `spec` of an object whose spec was cut: the spec's size."""
_LASTING = {"suspend": bool, "ttlSecondsAfterFinished": int}
"""Fields that are kept of a spec that is too large, and their types: those that end a job."""
_REMEDY = "put long texts and tables into files on a volume or into a ConfigMap that the pods mount"


def size(value: Any) -> int:
    """Bytes of a JSON value; 0 for what JSON cannot represent, of which `not_json` tells."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return 0
    return len(text.encode(errors="surrogatepass"))


def too_large(document: Mapping[str, Any]) -> Problem | None:
    """The problem of a document whose spec is larger than allowed, or was cut for that."""
    nbytes: int = document[CUT] if CUT in document else size(document.get("spec"))
    if nbytes <= MOST_BYTES:
        return None
    return Problem("spec", f"must have at most {MOST_BYTES:,} bytes as JSON; got {nbytes:,}; {_REMEDY}")


def too_large_when_complete(spec: BaseModel) -> Iterator[Problem]:
    """The problem of a spec that its defaults, such as those of thousands of list items, make too large."""
    nbytes = len(spec.model_dump_json(by_alias=True).encode())
    if nbytes > MOST_COMPLETE_BYTES:
        message = (
            f"must have at most {MOST_COMPLETE_BYTES:,} bytes as JSON with all its defaults; got {nbytes:,}"
        )
        yield Problem("spec", f"{message}; {_REMEDY}")


def cut(body: Mapping[str, Any]) -> dict[str, Any]:
    """The object, without most of its spec if that is larger than allowed."""
    spec = body.get("spec")
    if CUT in body or (nbytes := size(spec)) <= MOST_BYTES:
        return dict(body)
    fields = spec if isinstance(spec, Mapping) else {}
    lasting = {key: fields[key] for key, kind in _LASTING.items() if isinstance(fields.get(key), kind)}
    return {**body, "spec": lasting, CUT: nbytes}
