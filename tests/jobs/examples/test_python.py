"""The notebook, its cells in order, on smaller jobs than it shows."""

import json
import subprocess

from tests.support.forked import warm
from tests.support.rlhf import ROOT
from tests.support.sources.cells import run_cells

SMALLER = {
    '"examples/sorting/sft.yaml")': '"examples/sorting/sft.yaml").set(steps=20)',
    "steps=40)": 'steps=2).set({"generator.sharedWithTrainer": True, "rollout": {}})',
}


def test_a_notebook_trains_with_the_reward_of_its_cell(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", warm.FromNursery)
    notebook = json.loads((ROOT / "examples" / "python" / "sorting.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for old, new in SMALLER.items():
        assert any(old in cell for cell in cells)
        cells = [cell.replace(old, new) for cell in cells]
    run = run_cells(cells)["run"]
    assert [step["step"] for step in run.steps()] == [1, 2]
    assert all("reward_places_mean" in step for step in run.steps())
    assert "done: 20 of 20 steps" in capsys.readouterr().out
