"""RLHFJob manifests: parsing, overrides, validation."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from ..algorithms import ALGORITHMS, CUSTOM
from ..errors.meanings import UNKNOWN, Algorithm
from ..errors.messages import from_pydantic
from ..errors.model_fields import in_text_map
from ..errors.problem import InvalidJob, Problem, first, kind_of, show
from ..errors.similar import closest
from ..field_types import names_function
from ..host.printing import write_line
from ..host.strict_yaml import documents, floats_of_server, not_json
from ..host.variables import ENVIRONMENT
from ..job import API_VERSION, KIND, Metadata, RLHFJob
from ..rules.check import check
from ..rules.pods.placement import cluster_problems
from ..rules.size_limits import oversized
from ..sections.environment import holds_variables
from ..sections.pods import RuntimeKind
from ..spec import Spec
from .deepspeed_auto import in_our_fields
from .experiments import file_of, from_function, names_experiment, of_algorithm
from .includes import INCLUDE, merge, read
from .partial import further
from .spec_size import too_large, too_large_when_complete
from .spelling import in_camel_case, keys_in_camel_case


def parse(document: Any) -> RLHFJob:
    """Validates a manifest's document as a job.

    Raises:
        InvalidJob: with every problem found, each naming its field.
    """
    if not isinstance(document, Mapping):
        raise InvalidJob([Problem("manifest", f"must be one {KIND} object; it holds {kind_of(document)}")])
    if large := too_large(document):  # before anything that takes time with its size
        raise InvalidJob([large])
    if problems := first(not_json(document)):
        raise InvalidJob(problems)
    _check_outline(document)
    try:
        # Through JSON: strict types, and lists where the models have tuples, as from an API server.
        job = RLHFJob.model_validate_json(json.dumps(document))
    except ValidationError as error:
        algorithm = _algorithm(document)
        rest, partial_job = further(document, error, RLHFJob, _broken, algorithm)
        type_problems = from_pydantic(error, RLHFJob, algorithm=algorithm).problems
        raise InvalidJob([*type_problems, *rest], partial_job) from None
    if problems := first(_broken(job)):
        raise InvalidJob(problems, job)
    return job


def _check_outline(document: Mapping[str, Any]) -> None:
    """Raises InvalidJob for an object of another kind, and for fields of `spec` that stand beside it, with what else is
    wrong."""
    kind = document.get("kind")
    if isinstance(kind, str) and not closest(kind, [KIND]):
        where = "; a runtime's file is given with --runtime FILE" if kind in get_args(RuntimeKind) else ""
        raise InvalidJob(
            [Problem("kind", f"must be {KIND}: this is not a job's manifest{where}; got {show(kind)}")]
        )
    fields = {field.alias or name for name, field in Spec.model_fields.items()}
    spec, stray = document.get("spec", {}), [key for key in document if key in fields]
    if not stray or not isinstance(spec, Mapping):
        return
    reported = [
        Problem("spec", f"its fields are at the top level: {', '.join(stray)}; indent them under spec:")
    ]
    others = {key: value for key, value in document.items() if key not in fields}
    try:
        parse({**others, "spec": merge({key: document[key] for key in stray}, spec)})
    except InvalidJob as error:
        reported += error.problems
    raise InvalidJob(reported)


def _algorithm(document: Mapping[str, Any]) -> Algorithm:
    """The algorithm that the document names, for messages about unknown keys."""
    spec = document.get("spec")
    return named_algorithm(str(spec.get("algorithm")) if isinstance(spec, Mapping) else "")


def named_algorithm(name: str) -> Algorithm:
    """The algorithm of this name, for the meaning of unknown keys."""
    known = CUSTOM if ":" in name else ALGORITHMS.get(name)
    if known is None:
        return UNKNOWN
    sections = [f"spec.{to_camel(a.section)}" for a in (*ALGORITHMS.values(), CUSTOM) if a.settings]
    own = f"spec.{to_camel(known.section)}"
    return Algorithm(known.name, own, tuple(section for section in sections if section != own))


def _broken(job: RLHFJob) -> Iterator[Problem]:
    yield from oversized(job.spec, "spec")
    yield from check(job.spec)
    yield from too_large_when_complete(job.spec)


def from_cluster(body: Mapping[str, Any]) -> RLHFJob:
    """Validates an object from an API server as a job, without its status and the metadata that a cluster adds.

    Raises:
        InvalidJob: with every problem found, each naming its field.
    """
    if large := too_large(body):
        raise InvalidJob([large])
    known = {field.alias or name for name, field in Metadata.model_fields.items()}
    made = {key: value for key, value in body.items() if key != "status"}
    if isinstance(metadata := body.get("metadata"), Mapping):
        made["metadata"] = {key: value for key, value in metadata.items() if key in known}
    return parse(floats_of_server(made))


def runnable(body: Mapping[str, Any]) -> RLHFJob:
    """As `from_cluster`; raises InvalidJob for jobs too that run only on one machine."""
    job = from_cluster(body)
    if refused := [*cluster_problems(job.spec)]:
        raise InvalidJob(refused)
    return job


def load(
    file: Path,
    overrides: Iterable[str] = (),
    trial: str | None = None,
    *,
    variables: Mapping[str, str] = ENVIRONMENT,
    included: Mapping[str, str] = MappingProxyType({}),
) -> RLHFJob:
    """Validates a job from a YAML file or an experiment, after its includes and `path=value` overrides. A `trial` is
    named `<name>-<trial>`; `included`: texts of further files that it carries, in place of those of the same name.

    Raises:
        InvalidJob: a file cannot be read or is not YAML, or the job is invalid.
    """
    document = composed(file, overrides, variables)
    if included:
        document = merge(document, {"spec": {"workspace": {"files": dict(included)}}})
    job = parse(document)
    if trial is None:
        return job
    named = f"{job.metadata.name}-{trial}"
    try:
        return parse({**document, "metadata": {**document["metadata"], "name": named}})
    except InvalidJob as error:
        raise InvalidJob([Problem("--trial", problem.message) for problem in error.problems]) from None


def composed(file: Path, overrides: Iterable[str] = (), variables: Mapping[str, str] = ENVIRONMENT) -> Any:
    """The document of a YAML file as it is submitted: variables replaced, files included, overrides applied, keys in
    camelCase. In place of a file: an experiment by name, or the function `package.module:name` that returns it.

    Raises:
        InvalidJob: a file cannot be read or is not YAML, nothing has this name, or an override's path does not exist.
    """
    document = _named(file, variables)
    problems: list[Problem] = []
    for override in overrides:
        try:
            document = apply_override(document, override)
        except InvalidJob as error:
            problems += error.problems
    if problems:
        raise InvalidJob(problems)
    document, problems = in_our_fields(document, _read)
    if problems:
        try:
            parse(document)
        except InvalidJob as error:
            problems += error.problems
        raise InvalidJob(problems)
    return document


def _read(document: Any) -> Spec | None:
    """The spec of as much of a document as can be read."""
    if list(not_json(document)):
        return None
    try:
        return RLHFJob.model_validate_json(json.dumps(document)).spec
    except ValidationError as error:
        job = further(document, error, RLHFJob, lambda _: (), _algorithm(document))[1]
        return job.spec if job else None


def _named(file: Path, variables: Mapping[str, str]) -> Any:
    if names_function(str(file)):
        return _spelled(from_function(str(file)), f"{file}: ")
    if file.suffix == ".py" and file.is_file():
        message = "is Python; name the function in it that returns the manifest, "
        raise InvalidJob([Problem(str(file), f"{message}`{'.'.join(file.with_suffix('').parts)}:FUNCTION`")])
    if file.is_dir():
        known = " (the work directory of a run; run.json in it has that run's `spec`)"
        is_run = (file / "run.json").is_file()
        raise InvalidJob(
            [Problem(str(file), f"is a directory{known if is_run else ''}; give a manifest's file")]
        )
    if not names_experiment(file):
        return read(file, variables, _of_file)
    if own := file_of(str(file)):
        return read(own, variables, _of_file)
    return {"apiVersion": API_VERSION, "kind": KIND, **of_algorithm(str(file))}


def _spelled(document: Any, where: str = "") -> Any:
    return in_camel_case(document, RLHFJob, where)


def _of_file(document: Any, where: str) -> Any:
    """A file's document with its keys in camelCase. Raises InvalidJob for one that is no part of a manifest, and quotes
    nothing of it: an include may name any file of the machine."""
    spelled = _spelled(document, where)
    spec = document.get("spec") if isinstance(document, Mapping) else None
    if isinstance(spec, Mapping) and spec.get("environment") and holds_variables(spec["environment"]):
        message = "spec.environment: read as spec.env, the present name of variables of processes"
        write_line(f"{where}{message}", sys.stderr)
    if isinstance(spelled, Mapping) and spelled:
        kind = spelled.get("kind", KIND)
        known = any(key in _TOP or key in Spec.model_fields or key == INCLUDE for key in spelled)
        if not known or not isinstance(kind, str) or not closest(kind, [KIND]):
            if isinstance(kind, str) and kind in get_args(RuntimeKind):
                return spelled  # named with its remedy
            if not known:
                message = f"is no {KIND}, nor a part of one: it has none of {', '.join(sorted(_TOP))}"
                raise InvalidJob([Problem(where.rstrip(": "), message)])
            named = "apiVersion" in spelled and isinstance(kind, str) and kind.isalpha()
            message = f"must be {KIND}: this is not a job's manifest" + (
                f"; got {show(kind)}" if named else ""
            )
            raise InvalidJob([Problem(f"{where}kind", message)])
    return spelled


def apply_override(document: Any, override: str) -> Any:
    """The document with `path.to.field=value` set, the value read as YAML; lists take an index as `[i]`.

    A path that begins with no field of the manifest is relative to `spec`. In a map of strings, such as
    `spec.env`, the value stays a string.

    Raises:
        InvalidJob: the override has no `=`, or its path leads through a value that is not an object.
    """
    where, equals, text = override.partition("=")
    keys = override_keys(where)
    if not equals or not all(keys):
        raise InvalidJob(
            [Problem("--set", f"must be path=value, such as spec.ppo.klCoefficient=0.1; got {override!r}")]
        )
    values = documents(text, f"--set {where}")
    value = values[0] if values else None
    if not isinstance(value, str) and in_text_map(RLHFJob, keys):
        value = text
    return _spelled(_set(document, keys, value, where))


def override_keys(where: str) -> list[str]:
    """The keys of an override's path from the manifest's root on, in camelCase, with places in lists as `[i]`."""
    keys = where.replace("[", ".[").split(".")
    if keys_in_camel_case(keys[:1], RLHFJob)[0] not in _TOP:
        keys = ["spec", *keys]
    return keys_in_camel_case(keys, RLHFJob)


_TOP = frozenset(field.alias or name for name, field in RLHFJob.model_fields.items())


def _set(node: Any, keys: list[str], value: Any, where: str) -> Any:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if key.startswith("["):
        index = key[1:-1]
        if not (
            key.endswith("]") and index.isdecimal() and isinstance(node, list) and int(index) < len(node)
        ):
            raise InvalidJob([Problem(f"--set {where}", f"there is no item {key} in {show(node)}")])
        return [_set(item, rest, value, where) if i == int(index) else item for i, item in enumerate(node)]
    if node is not None and not isinstance(node, Mapping):
        raise InvalidJob([Problem(f"--set {where}", f"{key!r} is not a field of {show(node)}")])
    base = dict(node or {})
    return {**base, key: _set(base.get(key), rest, value, where)}
