"""Files that travel with a job: their names, where they are looked up, and what is told of them."""

import os
import sys
from pathlib import Path

import pytest
from tests.unit.api.manifests import document, job

from rlhf_api.contract.run import with_digests
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.imports import named_object
from rlhf_api.host.job_files import FOLDER, located, provided
from rlhf_api.manifest.load import load, parse
from rlhf_operator import cli
from rlhf_operator.console.included_files import read_included
from rlhf_operator.local.preflight.files import check_files

SECRET = "hunter-2"
CLAIM = "kind: PersistentVolumeClaim\nmetadata: {name: data}\n---\n"
MANIFEST = """
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata: {name: mine}
spec:
  algorithm: grpo
  steps: 1
  model: {policy: org/policy}
  data: {train: [my_rows.jsonl], promptsPerStep: 2}
  sampling: {responsesPerPrompt: 2}
  grpo: {minibatchSize: 4}
  reward: {functions: [{function: "my_rewards.by_length:score"}]}
  workspace:
    files:
      my_rows.jsonl: |
        {"prompt": "a"}
        {"prompt": "b"}
      my_rewards/by_length.py: |
        PRICE = "${NOT_A_VARIABLE}"
        def score(prompts, responses, rows):
            return [float(len(each)) for each in responses]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "job.yaml").write_text(CLAIM + MANIFEST)
    return tmp_path


def with_files(files: dict[str, str]) -> dict:
    made = document()
    made["spec"]["workspace"] = {"files": files}
    return made


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../x", "a//x", ".x", "a/", "a b", "a\n", "-x", "a:b", ""]
)
def test_a_name_stays_in_its_folder_and_its_text_is_not_told(name: str) -> None:
    with pytest.raises(InvalidJob, match="must be a relative path of letters, digits") as refused:
        parse(with_files({name: SECRET}))
    assert "[key]" not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_file_is_no_folder_and_there_are_not_too_many() -> None:
    with pytest.raises(InvalidJob, match=r"spec.workspace.files.a: cannot be a file and the folder of 'a/b'"):
        parse(with_files({"a": "", "a/b": ""}))
    with pytest.raises(InvalidJob, match=r"spec.workspace.files: .*at most 64"):
        parse(with_files({f"f{i}": "" for i in range(65)}))


@pytest.mark.parametrize("text", [f"{SECRET}\0", f"{SECRET}\ud800"])
def test_what_is_no_text_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"spec\.workspace\.files\.a: ") as refused:
        parse(with_files({"a": text}))
    assert SECRET not in str(refused.value)


def test_a_manifest_s_names_are_looked_up_among_its_files_first(here: Path) -> None:
    """A job is the only one of its kind in its file, beside a claim, and its code is as it is written."""
    made = load(here / "job.yaml")
    assert "${NOT_A_VARIABLE}" in made.spec.workspace.files["my_rewards/by_length.py"]
    assert check_files(made.spec) == []
    (here / "my_rows.jsonl").write_text("no rows")
    assert check_files(made.spec) == []
    with provided(made.spec.workspace.files):
        assert named_object("my_rewards.by_length:score")([], ["abc"], []) == [3.0]
        assert located("./my_rows.jsonl").read_text() == '{"prompt": "a"}\n{"prompt": "b"}\n'
        assert located("../my_rows.jsonl") == Path("../my_rows.jsonl")
        assert located("other.jsonl") == Path("other.jsonl")
    assert located("my_rows.jsonl") == Path("my_rows.jsonl")


@pytest.mark.usefixtures("here")
def test_mistakes_in_carried_files_have_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    broken = MANIFEST.replace('{"prompt": "b"}', '{"promt": "b"}').replace("def score", "def scores")
    Path("job.yaml").write_text(broken)
    assert cli.main(["validate", "job.yaml"]) == 2
    errors = capsys.readouterr().err
    assert "my_rows.jsonl:2: prompt: is missing" in errors
    assert (
        "my_rewards/by_length.py of spec.workspace.files defines no 'score'; did you mean 'scores'?" in errors
    )
    Path("job.yaml").write_text(MANIFEST.replace("my_rows.jsonl: |", "my_rewards: |"))
    assert cli.main(["validate", "job.yaml"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "spec.workspace.files.my_rewards: cannot be a file and the folder" in error


def test_configurations_have_digests_of_files() -> None:
    spec = parse(with_files({"a.py": SECRET})).spec
    text = with_digests(spec).model_dump_json()
    assert SECRET not in text
    assert "sha256 " in text
    assert with_digests(job().spec) == job().spec


def test_included_files_travel_under_the_names_that_were_given(here: Path) -> None:
    (here / "more").mkdir()
    (here / "more" / "rows.jsonl").write_text("{}")
    (here / "my_rows.jsonl").write_text("newer")
    included = read_included(["./more/rows.jsonl", "my_rows.jsonl"])
    files = load(here / "job.yaml", included=included).spec.workspace.files
    assert files["more/rows.jsonl"] == "{}"
    assert files["my_rows.jsonl"] == "newer"
    assert "my_rewards/by_length.py" in files


def test_what_cannot_travel_is_told_at_once(here: Path) -> None:
    (here / "weights.bin").write_bytes(b"\xff\xfe")
    (here / "large.jsonl").write_bytes(b" " * (257 << 10))
    names = ["weights.bin", "large.jsonl", "absent.py", str(here / "job.yaml"), "."]
    with pytest.raises(InvalidJob) as refused:
        read_included(names)
    assert [problem.where for problem in refused.value.problems] == [f"--include {name}" for name in names]
    remedies = (
        "not UTF-8 text",
        "larger than 256 KiB",
        "No such file",
        "call this from the folder",
        "relative path",
    )
    for problem, remedy in zip(refused.value.problems, remedies, strict=True):
        assert remedy in problem.message


def test_the_folder_is_gone_with_the_run() -> None:
    with provided({"a.py": ""}):
        folder = located("a.py").parent
        with provided({"b.py": ""}):
            assert located("a.py") == Path("a.py")
        assert located("a.py") == folder / "a.py"
    assert not folder.exists()
    assert FOLDER not in os.environ
