"""Keys of DeepSpeed: each has a case of the sweep, whose record is whole and passed; test_engine.py and
test_live_weights.py run some of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import pytest
from pydantic import BaseModel
from tests.unit.api.rules.test_every_field_acts import models
from tests.unit.trainer.models.sweep.sweep import CASES, NOT_RUN, Outcome

from rlhf_api.sections.deepspeed import DeepSpeedConfig

RECORD = json.loads(Path(__file__).with_name("sweep.json").read_text())


def keys(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Paths of all keys that hold no section."""
    for name, field in model.model_fields.items():
        inner = list(models(field.annotation))
        for section in inner:
            yield from keys(section, f"{before}{name}.")
        if not inner:
            yield f"{before}{name}"


def leaves(value: Any, before: str = "") -> Iterator[str]:
    if not isinstance(value, dict):
        yield before
        return
    for name, inner in value.items():
        yield from leaves(inner, f"{before}.{name}" if before else name)


def test_every_key_has_a_case_or_a_reason_for_having_none():
    """A key of a new DeepSpeed is noticed by api/rules/test_deepspeed_keys.py, and once it is accepted, here."""
    tried = {leaf for case in CASES for leaf in leaves(case.settings())} | {case.key for case in CASES}
    known = set(keys(DeepSpeedConfig))
    assert known - tried - NOT_RUN.keys() == set()
    assert NOT_RUN.keys() - known == set(), "no such keys"
    assert NOT_RUN.keys() & tried == set(), "these are run"


def test_the_record_is_of_these_cases_and_of_this_deepspeed():
    """Otherwise run `make sweep`."""
    assert RECORD["deepspeed"] == deepspeed.__version__
    assert list(RECORD["cases"]) == [case.name for case in CASES]


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_a_key_changes_no_number_beyond_its_tolerance_and_resumes_exactly(name):
    outcome = Outcome(**RECORD["cases"][name])
    assert outcome.passed, outcome
