"""docs/reference/algorithms.md: its graphs are those of `rlhf graph`, its tables have every setting and default."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.sources.scripts import load_script

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.algorithms.policy_gradient import PolicyGradient
from rlhf_api.field_types import Frozen
from rlhf_api.sections.optimizer import Optimizer

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / "docs" / "reference" / "algorithms.md").read_text()
SETTINGS = {a.name: a.settings for a in ALGORITHMS.values() if a.settings} | {
    "PolicyGradient": PolicyGradient
}


def script() -> ModuleType:
    return load_script(ROOT / "tools" / "make_algorithm_graphs.py")


def rows(name: str) -> dict[str, str]:
    """Setting to default, as the page's table of a section has them."""
    table = TEXT.partition(f"<!-- settings of {name} -->\n")[2].partition("\n\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \|(?: `(.*?)`)? \|", table, flags=re.M))


def defaults(model: type[Frozen]) -> dict[str, str]:
    values = {}
    for name, field in model.model_fields.items():
        shared = PolicyGradient.model_fields.get(name)
        if model is PolicyGradient or shared is None or field.default != shared.default:
            values[field.alias or name] = "" if field.default is None else json.dumps(field.default)
    return values


def test_the_graphs_are_current():
    assert script().filled(TEXT) == TEXT, "run tools/make_algorithm_graphs.py"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_section(name):
    assert f"\n## {name}\n" in TEXT
    assert f"\n| `{name}` | " in TEXT


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_that_differs_has_a_source(name):
    assert rows(name) == defaults(SETTINGS[name])


def test_the_optimizers_defaults_are_current():
    made = Optimizer()
    for key, value in (
        ("learningRate", made.learning_rate),
        ("betas", list(made.betas)),
        ("weightDecay", made.weight_decay),
        ("gradientClip", made.gradient_clip),
    ):
        assert f"| `optimizer.{key}` | `{json.dumps(value)}` |" in TEXT
