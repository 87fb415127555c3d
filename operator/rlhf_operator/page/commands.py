"""Command lines that go on from a run, for its reader to copy."""

import shlex
from collections.abc import Mapping

MANIFEST = "MANIFEST"
"""Stands for the file of the manifest, which a run does not know."""
STEP = "STEP"
"""Stands for the step of a checkpoint."""


def folder_commands(folder: str) -> Mapping[str, str]:
    """Of a work directory."""
    place = shlex.quote(folder)
    return {
        "resume": f"rlhf run {MANIFEST} --workdir {place} --resume",
        "clone": f"rlhf clone {MANIFEST} --from-step {STEP} --workdir {place}",
        **_reading(folder),
        "logs": f"rlhf logs {place}/",
    }


def store_commands(url: str) -> Mapping[str, str]:
    """Of a store, which the manifest names."""
    return {"clone": f"rlhf clone {MANIFEST} --from-step {STEP}", **_reading(url)}


def job_commands(namespace: str, name: str) -> Mapping[str, str]:
    """Of a job on a cluster."""
    place = f"{shlex.quote(name)} -n {shlex.quote(namespace)}"
    return {
        "status": f"kubectl rlhf status {place}",
        "logs": f"kubectl rlhf logs {place}",
        "clone": f"kubectl rlhf clone {place} --from-step {STEP}",
    }


def _reading(place: str) -> Mapping[str, str]:
    quoted = shlex.quote(place)
    return {
        "verify": f"rlhf checkpoint verify {quoted}",
        "repeat": f"rlhf replay verify {quoted}",
        "samples": f"rlhf samples {quoted}",
        "export": f"rlhf checkpoint export {quoted} {STEP} OUT",
    }
