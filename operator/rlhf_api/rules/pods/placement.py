"""Rules of `spec.placement`."""

from collections.abc import Iterator

from ...errors.problem import Problem
from ...spec import Spec


def cluster_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of a job for a cluster, where each process is a pod."""
    if spec.placement == "shared":
        message = "on a cluster each process is a pod, whose GPUs are its own; use auto or separate"
        yield Problem("spec.placement", f"{message}; got 'shared'")
