"""RLHFRuntime and ClusterRLHFRuntime: an administrator's pod settings, which jobs reference by `spec.runtime`.

`merged` merges the job's settings over the runtime's, by the rules of `pods.combine`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import ValidationError, model_validator

from ..contract.run import roles_of
from ..errors.messages import from_pydantic
from ..errors.problem import InvalidJob, Problem, first, show
from ..errors.similar import closest
from ..field_types import Frozen, Name, Report
from ..host.strict_yaml import not_json
from ..host.variables import ENVIRONMENT
from ..rules.check import check
from ..rules.size_limits import oversized
from ..sections.environment import move_variables, or_variables
from ..sections.pods import (
    PodSettings,
    RuntimeKind,
    Scheduling,
    Workspace,
    combine,
    over,
    shared_settings,
)
from ..spec import Spec
from .includes import read
from .spec_size import too_large, too_large_when_complete


class RuntimeRole(Frozen):
    """Settings of one role's pods."""

    pods: PodSettings = PodSettings()
    """Settings of this role's pods, merged over the runtime's `spec.pods`."""


class RuntimeEnvironment(RuntimeRole):
    """Settings of the pods of environments."""


class RuntimeSandbox(RuntimeRole):
    """Settings of the pods of sandboxes."""


class RuntimeSpec(Frozen):
    """Pod settings of jobs that reference this runtime; the job's own take precedence."""

    env: dict[str, str] = {}
    """Environment variables of every role; they must not hold secrets."""
    pods: PodSettings = PodSettings()
    workspace: Workspace = Workspace()
    scheduling: Scheduling = Scheduling()
    trainer: RuntimeRole = RuntimeRole()
    generator: RuntimeRole = RuntimeRole()
    reward: RuntimeRole = RuntimeRole()
    reference: RuntimeRole = RuntimeRole()
    environment: Annotated[RuntimeEnvironment, or_variables(RuntimeEnvironment)] = RuntimeEnvironment()
    sandbox: RuntimeSandbox = RuntimeSandbox()

    _move_variables = model_validator(mode="after")(move_variables)


class RuntimeMetadata(Frozen):
    """The metadata fields used here."""

    name: Name
    namespace: str | None = None
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Runtime(Frozen):
    """Pod settings of an administrator, for all jobs that reference them."""

    api_version: Literal["rlhf.dev/v1alpha1"]
    kind: RuntimeKind
    metadata: RuntimeMetadata
    spec: RuntimeSpec


class NamedRuntime(Report):
    """A runtime as it was when a job began."""

    kind: RuntimeKind
    name: str
    generation: int
    spec: RuntimeSpec


def parse_runtime(body: Any) -> NamedRuntime:
    """Validates a runtime from its manifest or from an API server.

    Raises:
        InvalidJob: with every problem found, each naming its field.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("metadata", {}), Mapping):
        raise InvalidJob([Problem("runtime", f"must be one ClusterRLHFRuntime object; got {show(body)}")])
    if large := too_large(body):
        raise InvalidJob([large])
    if problems := first(not_json(body)):
        raise InvalidJob(problems)
    kind, kinds = body.get("kind"), get_args(RuntimeKind)
    if isinstance(kind, str) and not closest(kind, kinds):
        message = f"must be {' or '.join(kinds)}: this is not a runtime's manifest; got {show(kind)}"
        raise InvalidJob([Problem("kind", message)])
    known = {field.alias or name for name, field in RuntimeMetadata.model_fields.items()}
    metadata = {key: value for key, value in body.get("metadata", {}).items() if key in known}
    try:
        runtime = Runtime.model_validate_json(json.dumps({**body, "metadata": metadata}))
    except ValidationError as error:
        raise from_pydantic(error, Runtime) from None
    if problems := first(oversized(runtime.spec, "spec")):
        raise InvalidJob(problems)
    meta = runtime.metadata
    return NamedRuntime(kind=runtime.kind, name=meta.name, generation=meta.generation, spec=runtime.spec)


def load_runtime(file: Path, variables: Mapping[str, str] = ENVIRONMENT) -> NamedRuntime:
    """Reads a runtime from a YAML file. Raises InvalidJob if the file is not a valid runtime."""
    document = read(file, variables)
    try:
        return parse_runtime(document)
    except InvalidJob as error:
        raise InvalidJob([Problem(f"{file}: {p.where}", p.message) for p in error.problems]) from None


def merged(spec: Spec, runtime: RuntimeSpec) -> Spec:
    """Merges the job's spec over the runtime's.

    Layers of a role's pods, lowest first: the runtime's for all roles, the runtime's for this one, the job's for all
    roles, the job's for this one.
    """
    roles = {}
    for role in roles_of(spec):  # what it says of others is for other jobs
        section, own = spec.section(role), getattr(runtime, role.value).pods
        if own.model_fields_set:
            layers = combine(combine(shared_settings(runtime.pods, role), own), spec.pods_of(role))
            roles[role.value] = section.model_copy(update={"pods": layers})
    return spec.model_copy(
        update={
            "env": runtime.env | spec.env,
            "pods": combine(runtime.pods, spec.pods),
            "workspace": over(runtime.workspace, spec.workspace),
            "scheduling": over(runtime.scheduling, spec.scheduling),
            **roles,
        }
    )


def with_runtime(spec: Spec, runtime: NamedRuntime) -> Spec:
    """The merged and validated spec.

    Raises:
        InvalidJob: job and runtime are not compatible.
    """
    outcome = merged(spec, runtime.spec)
    if problems := first(_broken(outcome)):
        raise InvalidJob(problems)
    return outcome


def _broken(spec: Spec) -> Iterator[Problem]:
    yield from oversized(spec, "spec")
    yield from check(spec)
    yield from too_large_when_complete(spec)
