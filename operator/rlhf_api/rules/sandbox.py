"""Rules of `spec.sandbox`."""

from collections.abc import Iterator

from ..contract.run import roles_of, shares_pod
from ..errors.problem import Problem, show
from ..roles import Role
from ..spec import Spec

_WHERE = "spec.sandbox"


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of sandboxes that no episode could have, and of more episodes than there are sandboxes."""
    section, environment = spec.sandbox, spec.environment
    if section is None or environment is None or Role.SANDBOX not in roles_of(spec):
        return
    if section.pods.image is None and spec.runtime is None:
        message = "has no default: name an image with python3, 3.8 or newer, and what commands need"
        yield Problem(f"{_WHERE}.pods.image", message)
    gpu = section.pods.gpu
    of_models = {"modelCache": section.pods.model_cache, "gpu.memoryGigabytes": gpu and gpu.memory_gigabytes}
    for name, value in of_models.items():
        if value is not None:
            message = f"is of models, and no sandbox loads one; remove it; got {show(value)}"
            yield Problem(f"{_WHERE}.pods.{name}", message)
    if environment.parallel is not None and environment.parallel > section.replicas:
        message = f"each episode has a sandbox, and there are {section.replicas} (sandbox.replicas); use at most that"
        yield Problem("spec.environment.parallel", f"{message}; got {environment.parallel}")
    if spec.generator.shared_with_trainer and spec.trainer.ranks > 1:
        message = "several ranks sample turns, and the first one alone knows of sandboxes; use generators"
        yield Problem(_WHERE, f"{message}, or one rank; got {spec.trainer.ranks} ranks")
    if shares_pod(spec):
        message = (
            "sandboxes are pods of their own, and processes that share GPUs are one; use placement separate"
        )
        yield Problem(_WHERE, message)
