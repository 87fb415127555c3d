"""A configuration of another system as a manifest, with what each of its names became; pure.

The names are those of `rlhf_api.errors.other_names` and `no_fields`, which also answer them in a manifest.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.errors.meanings import meaning_of
from rlhf_api.errors.model_fields import model_at
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.errors.similar import plain
from rlhf_api.job import API_VERSION, KIND, RLHFJob
from rlhf_api.manifest.load import named_algorithm, parse
from rlhf_api.sections.common import CommonSpec

from .algorithms import DECIDING, algorithm_meant, normalizes_each
from .context import Context, NotCarried, batch_sizes
from .settings import Configuration, Setting
from .values import CONVERTERS

_BY_ITSELF, _NOT_THERE = "remove it: ", ("remove it: the algorithm ", "remove it: no part ")
"""Begins of answers about what happens by itself, and about what does not."""
_ENGINE, _COLUMNS = "spec.generator.engineArguments", "spec.data.columns"
_TRACKERS, _PROJECT = "spec.trackers", "spec.trackers[].project"
_OF_SECTIONS = {"ckpt": "checkpoint", **dict.fromkeys(("eval", "val", "val_kwargs"), "evaluation")}
"""Sections of theirs -> ours with the same keys."""
_LEAVES = {"ac": "spec.trainer.gradientCheckpointing"}
"""Sections of theirs that are one field of ours."""
_OPTIMIZERS = {plain("optim"), plain("optimizer")}
"""Names of the optimizer, such as `adamw_8bit`, `paged_adamw_8bit` and `AdamW8bit`."""
_ADAMW_8BIT = re.compile(r"(?i)adamw.*8bit")
_TOGETHER = {plain(name) for name in ("max_len", "seq_len")}
"""Names of the length of prompt and response together."""
_HELD_OUT = {plain(name) for name in ("eval_dataset", "val_files")}
"""Names of held-out rows."""


@dataclass(frozen=True)
class Became:
    """The outcome of a setting: `fields` of the manifest with their values, or else only a `text` about it."""

    setting: Setting
    text: str = ""
    fields: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Imported:
    """`document`: a manifest of what could be carried over; `rows`: what became of each setting; `problems`: of the
    manifest, so what is missing; `comments`: by field, the name that it comes from."""

    document: Mapping[str, Any]
    rows: tuple[Became, ...]
    problems: tuple[Problem, ...]
    comments: Mapping[str, str]


def carry(configuration: Configuration, algorithm: str = "") -> Imported:
    """The manifest of a configuration; `algorithm` in place of the one that it names.

    Raises:
        InvalidJob: nothing says which algorithm it is.
    """
    given = {_key(each): each.value for each in configuration.settings if not _is_of_evaluation(each)}
    chosen = algorithm or algorithm_meant(given, configuration.algorithm)
    if not chosen:
        message = f"is needed: nothing there says it; one of {', '.join(ALGORITHMS)}"
        raise InvalidJob([Problem("--algorithm", message)])
    context = Context(configuration.system, chosen, given)
    # Those of the critic last: where both models have one field, the policy's value holds.
    ordered = sorted(configuration.settings, key=lambda setting: "critic" in setting.name.split("."))
    rows = [*_carried(ordered, context)]
    while True:
        document = _document({field: value for row in rows for field, value in row.fields}, chosen)
        problems = _problems(document)
        fields = [field for row in rows for field, _ in row.fields]
        refused = {field: problem for problem in problems for field in fields if _is_about(problem, field)}
        if not refused:
            break
        rows = [_without(row, refused) for row in rows]
    places = {id(setting): i for i, setting in enumerate(configuration.settings)}
    rows.sort(key=lambda row: places[id(row.setting)])
    comments = {field: row.setting.name for row in rows for field, _ in row.fields}
    return Imported(document, tuple(rows), tuple(problems), comments)


def _key(setting: Setting) -> str:
    return plain(setting.name.rpartition(".")[2])


def _is_of_evaluation(setting: Setting) -> bool:
    return "evaluation" in map(_OF_SECTIONS.get, setting.name.split("."))


def _problems(document: Mapping[str, Any]) -> Sequence[Problem]:
    try:
        parse(document)
    except InvalidJob as error:
        return error.problems
    return ()


def _carried(settings: Sequence[Setting], context: Context) -> Iterator[Became]:
    """The outcome of each setting; a field has the first value."""
    sizes, taken = batch_sizes(context), dict[str, str]()
    has_held_out = any(_key(setting) in _HELD_OUT and not setting.problem for setting in settings)
    for setting in settings:
        row = _became(setting, context, sizes)
        evaluates = any(field.startswith("spec.evaluation.") for field, _ in row.fields)
        if evaluates and not has_held_out:
            row = Became(setting, "not here: there are no held-out rows; set spec.evaluation")
        if others := [taken[field] for field, _ in row.fields if field in taken]:
            row = Became(setting, f"not here: {others[0]} sets {row.fields[0][0]}")
        taken |= {field: setting.name for field, _ in row.fields}
        yield row


def _of_variant(setting: Setting, context: Context) -> tuple[tuple[str, Any], ...]:
    """Our fields, and their values, of a variant of the algorithm that a deciding setting means."""
    algorithm = context.algorithm
    if algorithm == "reinforce_pp" and str(setting.value).endswith("_baseline"):
        return (("spec.reinforcePp.groupBaseline", True),)
    is_batch = setting.value == "batch" and not normalizes_each(context.given)
    if algorithm in ("grpo", "gspo", "cispo") and is_batch:
        return ((f"spec.{algorithm}.standardDeviation", "batch"),)
    return ()


def _became(setting: Setting, context: Context, sizes: Mapping[str, Mapping[str, Any]]) -> Became:
    key = _key(setting)
    if key in _OPTIMIZERS and _ADAMW_8BIT.search(str(setting.value)):
        return Became(setting, fields=(("spec.optimizer.moments", "8bit"),))
    if key in DECIDING:
        return Became(setting, f"spec.algorithm: {context.algorithm}", _of_variant(setting, context))
    if key in sizes:
        if not sizes[key]:
            return Became(setting, f"counted in {' and '.join(next(iter(sizes.values())))}")
        return Became(setting, fields=tuple(sizes[key].items()))
    fields, answer = _meaning(setting, context)
    if answer:
        return Became(setting, answer)
    if not fields:
        return Became(setting, "unknown")
    named = " and ".join(fields)
    if setting.problem:
        return Became(setting, f"not read: {setting.problem}; set {named}")
    if setting.value is None:
        return Became(setting, f"{named}: not set")
    try:
        converted = tuple(_value(field, key, setting, context) for field in fields)
    except NotCarried as error:
        return Became(setting, f"{named}: not carried over: {error}")
    except (TypeError, ValueError, ArithmeticError):
        return Became(setting, f"{named}: not carried over: its value is of another kind")
    return Became(setting, fields=converted)


def _value(field: str, key: str, setting: Setting, context: Context) -> tuple[str, Any]:
    """The field with the value in its own words. Raises NotCarried."""
    if field == _ENGINE:
        option = setting.name.rpartition(".")[2].removeprefix("vllm_").replace("_", "-")
        return f"{field}.{option}", setting.value
    if "[]" in field and field != _PROJECT:
        raise NotCarried("set it in each")
    if key in _TOGETHER and context.samples:
        raise NotCarried("it counts prompt and response together")
    if field == _COLUMNS:
        ((column, name),) = CONVERTERS[field](key, setting.value, context).items()
        return f"{field}.{column}", name
    convert = CONVERTERS.get(field) or CONVERTERS.get(field.rpartition(".")[2])
    if convert is not None:
        return field, convert(key, setting.value, context)
    if model_at(RLHFJob, field.split(".")) is not None:
        raise NotCarried("it is a section, whose fields have defaults")
    return field, [*setting.value] if isinstance(setting.value, tuple) else setting.value


def _meaning(setting: Setting, context: Context) -> tuple[tuple[str, ...], str]:
    """The fields that a name stands for, or an answer."""
    *sections, key = setting.name.split(".")
    own, last = to_camel(context.algorithm), sections[-1] if sections else ""
    if last in _LEAVES:
        return (_LEAVES[last],), ""
    above = _OF_SECTIONS.get(last, last)
    if not above and context.system in ("TRL", "OpenRLHF"):
        above = own
    location = ("spec", above, key) if above else ("spec", key)
    meaning = meaning_of(RLHFJob, location, named_algorithm(context.algorithm))
    if meaning.answer:
        automatic = meaning.answer.startswith(_BY_ITSELF) and not meaning.answer.startswith(_NOT_THERE)
        return (), f"{'automatic' if automatic else 'not here'}: {meaning.answer.removeprefix(_BY_ITSELF)}"
    if meaning.mistyped and plain(meaning.mistyped) != plain(key):
        return (), ""
    fields = tuple(dict.fromkeys(_in_place(field, sections, context) for field in meaning.fields))
    if above == "evaluation" and fields and not fields[0].startswith("spec.evaluation."):
        return (), "not here: an evaluation samples as training does, but for its temperature"
    if "ref" in sections and fields and fields[0].startswith("spec.trainer."):
        return (), "not here: the reference is a role of its own, spec.reference"
    batch, minibatch = "spec.data.promptsPerStep", f"spec.{own}.minibatchSize"
    if {batch, minibatch} <= {*fields}:
        fields = (minibatch if context.samples else batch,)
    return fields, ""


def _in_place(field: str, sections: Sequence[str], context: Context) -> str:
    """The field of the critic or the reward model where a name stands in its section; that of sampled responses where
    they are."""
    lengths = ("spec.sampling.maxNewTokens", "spec.data.maxResponseLength")
    if field in lengths:
        return lengths[0 if context.samples else 1]
    role = next((role for role in ("critic", "reward_model") if role in sections), "")
    of_role = {
        ("critic", "spec.model.policy"): "spec.model.critic",
        ("critic", "spec.optimizer.learningRate"): "spec.optimizer.criticLearningRate",
        ("critic", "spec.trainer.microBatchTokens"): "spec.trainer.criticMicroBatchTokens",
        ("reward_model", "spec.model.policy"): "spec.model.reward",
    }
    return of_role.get((role, field), field)


def _is_about(problem: Problem, field: str) -> bool:
    return problem.where == field or problem.where.startswith((f"{field}.", f"{field}["))


def _without(row: Became, refused: Mapping[str, Problem]) -> Became:
    """The row without fields that the manifest cannot have."""
    wrong = [field for field, _ in row.fields if field in refused]
    if not wrong:
        return row
    text = "; ".join(f"{field}: not carried over: {refused[field].message}" for field in wrong)
    return Became(row.setting, text, tuple(pair for pair in row.fields if pair[0] not in wrong))


def _document(fields: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """The manifest with these fields, in the order of the models."""
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {}, "spec": {}}
    made = {"metadata.name": algorithm.replace("_", "-"), "spec.algorithm": algorithm, **fields}
    if project := made.pop(_PROJECT, None):
        given = made.get(_TRACKERS) or [{"kind": "wandb"}]
        made[_TRACKERS] = [
            each if each["kind"] == "tensorboard" else {**each, "project": project} for each in given
        ]
    for field, value in made.items():
        *above, last = field.split(".")
        node = document
        for key in above:
            node = node.setdefault(key, {})
        node[last] = value
    order = [model_field.alias or name for name, model_field in CommonSpec.model_fields.items()]
    order.insert(order.index("sampling") + 1, to_camel(algorithm))
    document["spec"] = dict(sorted(document["spec"].items(), key=lambda item: order.index(item[0])))
    return document
