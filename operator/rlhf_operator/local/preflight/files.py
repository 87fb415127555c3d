"""Checks of a job's files before any process is started."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from rlhf_api.algorithms import teachers_of
from rlhf_api.contract.run import on_one_machine, roles_of
from rlhf_api.contract.teachers import teacher_field
from rlhf_api.dataset.chat_template import template_problems
from rlhf_api.dataset.row_files import TABLES, RowFile, is_parquet
from rlhf_api.dataset.teachers import teacher_problem, with_teacher
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.resources import problems
from rlhf_api.field_types import RowKind, names_function
from rlhf_api.graph import TEACHER
from rlhf_api.host.foreign_files import READ_ERRORS, read_json
from rlhf_api.host.interpreter import problem_by_files
from rlhf_api.host.job_files import located, provided
from rlhf_api.host.redaction import secret_fields
from rlhf_api.rules.check import CHANGEABLE
from rlhf_api.sections.data import Source, unknown_store
from rlhf_api.sections.environment import PATH, PYTHON
from rlhf_api.sections.pods import PodSettings, Workspace
from rlhf_api.spec import Spec

from ..modules import missing, unplayable, unscoring
from ..records.provenance import named_code
from .models import layer_problems, model_problems, tokenizer_problems

_OF_A_CLUSTER = {*CHANGEABLE, "pods", "workspace", "scheduling", "autoscale", "sandbox"}
MOST_ROWS = 10
"""Maximum number of problems reported for each file's rows."""


def check_files(spec: Spec) -> list[Problem]:
    """Problems of data files' rows, of a chat template, of local model directories, of vLLM's options, of Python
    functions' modules, and of models that are too large for the GPUs."""
    sizes = model_sizes(spec)
    models = (*model_problems(spec), *layer_problems(spec), *tokenizer_problems(spec))
    with provided(spec.workspace.files):
        named = (*_data(spec), *_template_syntax(spec), *models)
        return [*named, *_functions(spec), *problems(spec, sizes)]


def named_files(spec: Spec, reported: Sequence[Problem]) -> list[Problem]:
    """Problems of `check_files` that hold for a spec with the problems `reported`, and do not follow from them."""
    if any(problem.where.startswith("spec.workspace.files") for problem in reported):
        return []  # without them, all that they hold would be missing
    data = [] if any(problem.where.startswith("spec.data") for problem in reported) else _data(spec)
    with provided(spec.workspace.files):
        all_problems = [*data, *_template_syntax(spec), *model_problems(spec), *_functions(spec)]
    return [
        problem for problem in all_problems if not any(other.where == problem.where for other in reported)
    ]


def plain_secrets(spec: Spec) -> list[str]:
    """Warnings of values that look like secrets. They are left out of cards, of trackers and of snapshots, and stay in
    the job's own object."""
    secret_paths = secret_fields(
        json.loads(spec.model_dump_json(by_alias=True, exclude_defaults=True)), "spec"
    )
    remedy = "put it into a Secret that spec.pods.secrets names, or into the environment of `rlhf run`"
    return [
        f"warning: {where} looks like a secret, and all who may read the job read it; {remedy}"
        for where in secret_paths[:MOST_ROWS]
    ]


def of_a_cluster(spec: Spec) -> list[str]:
    """Fields that the job sets and that only act on a cluster, as all do of the pods but GPUs, and of the workspace but
    files."""
    sections: dict[str, BaseModel] = {"spec": spec}
    sections |= {f"spec.{role.value}": spec.section(role) for role in roles_of(on_one_machine(spec))}
    sections |= {teacher_field(teacher): teacher for teacher in teachers_of(spec)}
    return [
        f"{where}.{to_camel(name)}"
        for where, section in sections.items()
        for name in sorted(_OF_A_CLUSTER & type(section).model_fields.keys())
        if _on_cluster_alone(getattr(section, name)) != type(section).model_fields[name].get_default()
    ]


def _on_cluster_alone(value: Any) -> Any:
    """A section without those of its fields."""
    if isinstance(value, PodSettings):
        return value.model_copy(update={"gpu": None})
    return value.model_copy(update={"files": {}}) if isinstance(value, Workspace) else value


def _data(spec: Spec) -> Iterator[Problem]:
    files, field = spec.data.training_sources(), "train" if spec.data.train is not None else "sources"
    kind = spec.graph.rows
    names = [teacher.name for teacher in teachers_of(spec)]
    yield from _rows(spec, f"spec.data.{field}", files, kind, names)
    if spec.pretraining is not None:
        text = [Source(path=path) for path in spec.pretraining.data]
        yield from _rows(spec, "spec.pretraining.data", text, "responses")
    if spec.evaluation is not None:
        for i, held_out in enumerate(spec.evaluation_sets()):
            where = f"spec.evaluation.sets[{i}].data" if spec.evaluation.sets else "spec.evaluation.data"
            held = [Source(path=path, columns=spec.data.columns) for path in held_out.data]
            yield from _rows(spec, where, held, kind)


def _rows(
    spec: Spec, field: str, sources: Iterable[Source], kind: RowKind, teachers: Sequence[str] = ()
) -> Iterator[Problem]:
    """Problems of local files' rows, of which each names one of `teachers`, if there are any; the trainer checks rows
    of tables, of objects in a store and of the hub."""
    for i, source in enumerate(sources):
        where, path = f"{field}[{i}]", source.path
        if names_function(path):
            yield from _missing_code(where, path)
            continue
        if what := unknown_store(path):
            yield Problem(where, what)
        if "://" in path:
            continue
        file = located(path)
        if path.endswith(TABLES) and file.is_file():
            if path.endswith(".parquet") and not is_parquet(file):
                message = "is not a whole Parquet file: the marks at its start and end are missing; download it again"
                yield Problem(where, f"{path}: {message}")
            continue
        chat, wrong = source.system_prompt is not None, list[Problem]()
        try:
            rows = RowFile(file, kind, path, columns=source.columns)
            for number, row in enumerate(rows.each()):
                if isinstance(row, InvalidJob):
                    wrong += row.problems
                else:
                    chat = chat or row.is_conversation
                    row = with_teacher(row, source.teacher) if source.teacher else row
                    if teachers and (what := teacher_problem(row, teachers)):
                        wrong.append(Problem(f"{rows.where(number)}: {TEACHER}", what))
                if len(wrong) >= MOST_ROWS:
                    break
        except InvalidJob as error:
            wrong += error.problems
        yield from (Problem(where, str(problem)) for problem in wrong)
        if len(wrong) >= MOST_ROWS:
            yield Problem(where, f"further rows of {path} were not looked at; `rlhf data check` names all")
        yield from _template(spec, where) if chat and not wrong else ()


def _template(spec: Spec, where: str) -> Iterator[Problem]:
    """Problems of conversations without a chat template, for local tokenizers."""
    given, name = spec.data.chat_template, spec.model.tokenizer or spec.model.policy
    if given is not None or (name is not None and not Path(name).is_dir()):
        return
    folder = Path(name or "")
    if name is None or (not (folder / "chat_template.jinja").exists() and not _names_template(folder)):
        whose = "a tokenizer made from scratch" if name is None else f"the tokenizer {name!r}"
        yield Problem(
            where, f"has conversations, and {whose} has no chat template; give spec.data.chatTemplate"
        )


def _names_template(folder: Path) -> bool:
    try:
        return "chat_template" in read_json(folder / "tokenizer_config.json")
    except READ_ERRORS:
        return True  # reported elsewhere, or by the tokenizer itself


def _template_syntax(spec: Spec) -> list[Problem]:
    given = spec.data.chat_template
    return [] if given is None else template_problems(given)


def _functions(spec: Spec) -> Iterator[Problem]:
    python = None if spec.environment is None else spec.environment.python
    if python is not None and (reason := problem_by_files(python)):
        yield Problem(PYTHON, f"{reason}; got {python!r}")
    for where, name in named_code(spec):
        unfit = unscoring if where.endswith(".function") else unplayable if where == PATH else None
        yield from _missing_code(where, name, unfit)


def _missing_code(where: str, name: str, unfit: Callable[[str], str] | None = None) -> Iterator[Problem]:
    """`unfit`: the reason why an object that is there is not of the kind that its field names; else ''."""
    if what := missing(name) or (unfit and unfit(name)):
        yield Problem(where, f"{what}; got {name!r}")
