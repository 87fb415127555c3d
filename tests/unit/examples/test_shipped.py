"""The shipped data of examples: made by their scripts, and without a prompt in two files."""

import pytest
from examples.arithmetic import make_data as arithmetic
from examples.sorting import make_data as sorting
from tests.support.rlhf import ROOT
from tests.unit.examples.shipped import SETS, read_rows

SCRIPTS = {"arithmetic": arithmetic, "sorting": sorting}


@pytest.mark.parametrize("example", SCRIPTS)
def test_the_script_makes_the_shipped_files(example, tmp_path):
    SCRIPTS[example].write(tmp_path, SCRIPTS[example].data_sets())
    for name in SETS:
        shipped = ROOT / "examples" / example / f"{name}.jsonl"
        assert (tmp_path / shipped.name).read_bytes() == shipped.read_bytes()


@pytest.mark.parametrize("example", SCRIPTS)
def test_no_prompt_is_in_two_files(example):
    prompts = [row["prompt"] for name in SETS for row in read_rows(example, name)]
    assert len(set(prompts)) == len(prompts)
