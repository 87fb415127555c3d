"""docs/guides/coming-from.md: every row answers; commands in it parse, and fields in it change a run. Every name of its
tables in a manifest is answered as there."""

import re
import shlex
import typing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.repository.names_elsewhere import NAMES
from tests.unit.api.manifests import job
from tests.unit.api.schema.rules import SPEC
from tests.unit.manifest_fields.places import REFUSED, leaves

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_operator import cli

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "coming-from.md"


def rows() -> list[tuple[str, str, str]]:
    """(theirs, ours, note) of every table."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in lines]
    return [row for row in cells if row[0] not in ("theirs", "---")]


def rows_by_heading() -> list[tuple[str, tuple[str, str, str]]]:
    """Each row with the heading above its table."""
    heading, under_headings = "", []
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| `"):
            under_headings.append(
                (heading, tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]))
            )
    return under_headings


def models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in models(inner)]


def exists(path: str) -> bool:
    """`spec.x.y`, as a manifest spells it, is a field of the contract; `[]` may follow the name of a list."""
    places: list[type[BaseModel]] = [RLHFJob]
    for key in path.replace("[]", "").split("."):
        fields = [f for place in places for name, f in place.model_fields.items() if (f.alias or name) == key]
        if not fields:
            return False
        places = [model for field in fields for model in models(field.annotation)]
    return True


LEAVES = [at for at, _ in leaves()]


def changes_a_run(field: str, note: str) -> bool:
    """It is a leaf, or a section with some, that `tests/unit/manifest_fields` sees acting; of one with a single value
    the note says that any other is refused. A job's name is that of all its objects."""
    at = field.replace("[]", "[0]")
    matching_leaves = [leaf for leaf in LEAVES if leaf == at or leaf.startswith((f"{at}.", f"{at}["))]
    return (
        field == "metadata.name"
        or bool(set(matching_leaves) - REFUSED)
        or (bool(matching_leaves) and "refused" in note)
    )


def named(text: str) -> tuple[list[str], list[str]]:
    """Fields and commands in backticks."""
    quoted = re.findall(r"`([^`]+)`", text)
    fields = [re.split(r"[:=]", span)[0] for span in quoted if re.match(r"(spec|metadata)\.", span)]
    return fields, [span for span in quoted if span.startswith("rlhf ")]


every_row = pytest.mark.parametrize(
    "row", rows(), ids=lambda row: re.sub(r"[^a-zA-Z0-9_.]+", "-", row[0])[:40]
)


@every_row
def test_every_row_answers_with_something_that_exists(row):
    assert len(row) == 3
    _, ours, note = row
    fields, commands = named(ours)
    assert (
        fields
        or commands
        or re.search(r"\]\([./a-z-]+\.md", ours)
        or (ours in ("automatic", "not here") and note)
    ), ours
    also, more = named(note)
    assert [field for field in fields + also if not exists(field)] == []
    assert [field for field in fields + also if not changes_a_run(field, note)] == []
    for command in commands + more:
        cli._parser().parse_args(shlex.split(command)[1:])


@every_row
def test_links_to_headings_lead_to_them(row):
    for page, heading in re.findall(r"\]\(([./a-z-]+\.md)#([^)]+)\)", " ".join(row)):
        headings = re.findall(r"^#+ (.+)$", (PAGE.parent / page).read_text(), flags=re.M)
        assert heading in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]


ALGORITHMS = {
    "TrainingArguments": "grpo",
    "GRPOConfig": "grpo",
    "PPOConfig": "ppo",
    "DPOConfig": "dpo",
    "OnlineDPOConfig": "online_dpo",
    "SFTConfig": "sft",
    "ModelConfig": "grpo",
    "verl": "ppo",
    "OpenRLHF": "ppo",
    "prime-rl": "grpo",
}
"""Headings with a row for every name -> an algorithm under which it is told."""
NO_FIELDS = {
    *("set_replay_sample_fn", "register_hf_family", "from_llama", "to_llama", "initial_setup"),
    *("scheduling_setup", "flash_mqat", "stage3_gather_16bit_weights_on_model_save"),
    *("gradient_accumulation_steps", "train_batch_size", "actor_micro_bs", "model_path"),
}
"""Functions, switches without a counterpart, keys that a section takes, and names that stand for several of ours."""
OBJECTS = {key for key, field in SPEC["properties"].items() if "properties" in field}
ANSWERED = [row for row in rows_by_heading() if row[0] in ALGORITHMS]
OTHERS = [row for heading, row in rows_by_heading() if heading not in ALGORITHMS]


def answer(name: str, algorithm: str) -> str:
    """The message about a name of theirs in a manifest, in the section that has the name of theirs if there is one; ""
    if it is a field of ours."""
    section, _, key = name.rpartition(".")
    last = section.rpartition(".")[2]
    where = f"spec.{last}.{key}" if last in OBJECTS else f"spec.{key}"
    alone = {"dpo": ("spec.ppo={}",), "sft": ("spec.ppo={}",)}.get(algorithm, ())
    try:
        job(f"spec.algorithm={algorithm}", *alone, f"{where}=1")
    except InvalidJob as error:
        messages = (problem.message for problem in error.problems if problem.where == where)
        return next(
            (message for message in messages if "unknown field" in message or "remove it" in message), ""
        )
    return ""


@pytest.mark.parametrize(
    ("heading", "row"), ANSWERED, ids=lambda part: part[0] if isinstance(part, tuple) else part
)
def test_a_name_of_theirs_in_a_manifest_is_answered_as_in_the_table(heading, row):
    theirs, ours, _ = row
    fields, _ = named(ours)
    algorithm = next((a for a in ("ppo", "grpo", "dpo") if f"spec.{a}." in ours), ALGORITHMS[heading])
    for name in re.findall(r"`([\w.]+)`", theirs):
        message = answer(name, algorithm)
        if fields and message:
            assert fields[0].removeprefix("spec.").rpartition(".")[2] in message, name
        else:
            assert not re.search("did you mean|known here", message), name
            assert message or fields, name


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: re.sub(r"[^a-zA-Z0-9_.]+", "-", row[0])[:40])
def test_a_name_of_theirs_in_a_manifest_leads_to_our_field(row):
    theirs, ours, _ = row
    fields, _ = named(ours)
    for name in re.findall(r"`(?:[a-z_]+\.)*([a-z]+_[a-z0-9_]+)`", theirs) if fields else ():
        message = answer(name, "dpo" if "spec.dpo." in ours or "maxResponseLength" in ours else "ppo")
        assert not message or name in NO_FIELDS or fields[0].rpartition(".")[2] in message


@pytest.mark.parametrize("heading", ALGORITHMS)
def test_a_name_has_one_row(heading):
    names = [name for at, row in ANSWERED if at == heading for name in re.findall(r"`([\w.]+)`", row[0])]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("system", "names"), NAMES.items())
def test_every_name_of_a_published_configuration_has_a_row(system, names):
    headings = set(ALGORITHMS) - {"verl", "OpenRLHF", "prime-rl"} if system == "TRL" else {system}
    there = {
        name.rpartition(".")[2]
        for at, row in ANSWERED
        if at in headings
        for name in re.findall(r"`([\w.]+)`", row[0])
    }
    assert set(names.split()) - there == set()


@pytest.mark.parametrize(
    "path", ["spec.ppo.klCoeff", "spec.model.lora.policy.dropout", "spec.reward.functions[].uri"]
)
def test_a_field_that_is_not_there_is_found_out(path):
    assert not exists(path)


def test_a_field_that_changes_nothing_is_found_out():
    assert not changes_a_run("spec.trainer.deepspeed.steps_per_print", "")
    assert not changes_a_run("spec.ppo.klCoeff", "refused")
