"""The tests on a GPU: what they cover, and the record of their runs, of which a release needs one of its code."""

import json
import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from tests.gpu.cases import FAMILIES, UPDATES, can_be, pairs_of, pairs_that_can_be
from tests.gpu.jobs import JOBS

from rlhf_api.manifest.load import load

ROOT = Path(__file__).parents[2]
REPORT = """<testsuites><testsuite>
<testcase classname="a" name="one"/>
<testcase classname="a" name="two"><failure message="no"/></testcase>
<testcase classname="a" name="two"><error message="no"/></testcase>
<testcase classname="b" name="three"><skipped message="needs 2 GPUs; 1 here"/></testcase>
<testcase classname="b" name="four"><skipped message="needs 2 GPUs; 1 here"/></testcase>
</testsuite></testsuites>"""


def test_each_two_settings_that_can_meet_meet_in_a_case():
    assert all(map(can_be, UPDATES))
    assert set(chain.from_iterable(map(pairs_of, UPDATES))) == pairs_that_can_be()


def test_ten_families_are_tried():
    assert len({config.model_type for config in FAMILIES.values()}) == len(FAMILIES) == 10


@pytest.mark.parametrize("name", JOBS)
def test_a_job_for_a_gpu_is_valid(name: str):
    job = JOBS[name]
    made = [f"spec.model.{field}=made" for field in ("policy", "reward") if getattr(job, field)]
    load(job.file, [*made, *job.settings])


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/gpu in a repository of its own, in which one commit has a trainer of two files."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "gpu", tmp_path / "tools")
    folder = tmp_path / "trainer_image" / "rlhf_trainer"
    folder.mkdir(parents=True)
    for name in ("loop.py", "losses.py"):
        (folder / name).write_text("")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.delenv("COMMIT", raising=False)
    loader = SourceFileLoader("gpu", str(tmp_path / "tools" / "gpu"))
    spec = spec_from_loader("gpu", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def record(gpu: ModuleType, **changes: object) -> None:
    line = {
        "commit": gpu.find_commit(),
        "code": gpu.digest(),
        "day": "2026-11-28",
        "machine": "1 x H200",
        "seconds": 9,
    }
    line |= {"passed": 3, "failed": [], "skipped": {"needs 2 GPUs; 1 here": 2}, **changes}
    gpu.RECORD.write_text(json.dumps(line) + "\n")


def test_a_run_is_described_by_its_commit_and_outcomes(gpu: ModuleType, tmp_path: Path):
    (tmp_path / "tests.xml").write_text(REPORT)
    outcomes = gpu.outcomes(tmp_path / "tests.xml")
    assert outcomes == {"passed": 1, "failed": ["a::two"], "skipped": {"needs 2 GPUs; 1 here": 2}}
    record(gpu, **outcomes)
    counts = "1 passed, 1 failed, 2 skipped in 9 s; the code is the same here"
    assert gpu.state().endswith(f"{gpu.find_commit()} of 2026-11-28 on 1 x H200: {counts}")


def test_a_change_of_the_trainer_is_counted_and_no_release_may_be_made_of_it(gpu: ModuleType):
    assert "no run is recorded" in gpu.why_not_released()
    record(gpu)
    assert gpu.why_not_released() is None
    (gpu.ROOT / gpu.CODE[0] / "loop.py").write_text("pass\n")
    assert gpu.state().endswith("1 files of the trainer have changed since")
    assert "1 files of the trainer" in gpu.why_not_released()
    assert gpu.find_commit().endswith("-dirty")


def test_no_release_is_made_of_code_that_failed_on_a_gpu(gpu: ModuleType):
    record(gpu, failed=["a::two"])
    assert gpu.why_not_released().endswith("failed: a::two")


def test_a_run_without_git_names_its_commit(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch):
    shutil.rmtree(gpu.ROOT / ".git")
    with pytest.raises(SystemExit, match="COMMIT"):
        gpu.find_commit()
    monkeypatch.setenv("COMMIT", "abc")
    assert gpu.find_commit() == "abc"
