"""Functions of notebooks as names that another process imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sources.cells import run_cells
from tests.unit.api.manifests import job

from rlhf import InvalidJob
from rlhf.functions import import_path, saved_files
from rlhf_operator.console.included_files import read_included

CELL = """
from __future__ import annotations
import json as j
from collections import Counter
from math import sqrt
import xml.etree.ElementTree

LIMIT = 2
TABLE = {"a": [1, (2.5, None)]}

def half(value: UnknownType) -> UnknownType:
    return value / LIMIT

def score(prompts, responses, rows, scale=LIMIT):
    '''Counts.'''
    known = [name for name in Counter(responses)]
    return [half(len(known)) * sqrt(4) * scale + TABLE["a"][1][0] + len(j.dumps(known))
            + len(xml.etree.ElementTree.fromstring("<a><b/></a>"))]
"""


def test_a_cell_is_saved_with_all_that_it_uses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    score = run_cells([CELL])["score"]
    path = import_path(score)
    assert path == import_path(score), "named after its content"
    module, _, name = path.partition(":")
    (file,) = saved_files(job(f"spec.reward.functions=[{{function: '{path}'}}, {{function: 'a.b:c'}}]").spec)
    assert read_included([file]) == {file: Path(file).read_text()}, "it can travel with a job"
    program = (
        f"import importlib, sys; sys.path.append('.'); score = importlib.import_module({module!r}).{name}\n"
    )
    program += "print(score([], ['x', 'y'], []))"
    printed = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(printed) == score([], ["x", "y"], [])


def test_a_function_of_a_module_keeps_its_name(monkeypatch):
    assert import_path(run_cells) == "tests.support.sources.cells:run_cells"
    monkeypatch.setattr(run_cells, "__module__", "elsewhere")
    with pytest.raises(InvalidJob, match="run_cells: no module 'elsewhere' in"):
        import_path(run_cells)


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("score = lambda *_: [1.0]", "<lambda>: is a lambda, which no other process can import"),
        ("class score: pass", "score: is a class, which no other process can import"),
        (
            "def make(k):\n def score(p, responses, rows): return [k]\n return score\nscore = make(2)",
            "score: is defined inside make and uses its k; define it at the top of a cell or of a file",
        ),
        (
            "API_KEY = 'sk-0123456789abcdef'\ndef score(p, responses, rows): return [len(API_KEY)]",
            "score: uses API_KEY, which looks like a secret, and would be saved in clear; read it from os.environ",
        ),
        ("def score(p, responses, rows): return [nothing]", "score: uses nothing, which is not defined"),
        (
            "state = object()\ndef score(p, responses, rows): return [state]",
            "score: uses state, which is of type object and is not saved with it; make it inside the function, or",
        ),
        (
            "class Judge: pass\ndef score(p, r, rows): return [Judge()]",
            "score: uses Judge, which is a class and",
        ),
        (
            "half = lambda v: v\ndef score(p, r, rows): return half(r)",
            "score: uses half, which is no function that",
        ),
    ],
)
def test_what_no_other_process_could_have_is_refused_with_the_reason(tmp_path, monkeypatch, cell, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidJob) as refused:
        import_path(run_cells([cell])["score"])
    assert problem in str(refused.value)
    assert list(tmp_path.iterdir()) == []
