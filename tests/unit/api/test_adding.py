"""A role, an algorithm and a kind of row as a contributor adds them: a diff, applied to a copy of the sources.

The trainer image is not changed: what a new role or kind of row computes there is new code.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tests.support.sources.contributor import ROOT, copied, edit, importing

ROW = 'TEACHER = "teacher", RoleRow(work="infer", model="teacher", grace_seconds=40, ready="/warm")'
SECTION = '''class Teacher(ModelServerSpec):
    """Log-probabilities of a larger model, which the policy learns from."""


'''
ROWS = '''class RankedRow(Row):
    """A prompt with its answers, best first."""

    prompt: Prompt
    ranked: Annotated[list[Prompt], Field(min_length=2)]


'''
ALGORITHM = '''"""On-policy distillation: the policy's responses under a teacher."""

from ..field_types import Frozen, PositiveFloat
from ..graph import POLICY, SEQUENCES, Generate, Graph, Infer, Model, Train
from .base import Algorithm

TEACHER = Model("teacher", "teacher", "causal")


class Distill(Frozen):
    """Distillation on the policy's own responses."""

    strength: PositiveFloat = 1.0
    """Factor of the divergence."""


def _graph(_spec, _settings):
    nodes = (
        Generate(),
        Infer(name="teach", model=TEACHER, writes=("teacher_logprobs",)),
        Train(name="train", model=POLICY, loss="reverse_kl", reads=(SEQUENCES, "teacher_logprobs")),
    )
    return Graph(nodes)


ALGORITHM = Algorithm(name="distill", settings=Distill, graph=_graph)
'''
TABLE = "ROW_TYPES: dict[RowKind, type[Row]] = {"
EDITS = {
    "rlhf_api/roles.py": (
        ('    REFERENCE = "reference"', f'    {ROW}\n    REFERENCE = "reference"'),
    ),
    "rlhf_api/sections/roles.py": (
        ("class Reference(ModelServerSpec):\n", f"{SECTION}class Reference(ModelServerSpec):\n"),
    ),
    "rlhf_api/field_types.py": (
        ('ModelField = Literal["policy", ', 'ModelField = Literal["teacher", "policy", '),
        ('RowKind = Literal["prompts", ', 'RowKind = Literal["ranked", "prompts", '),
    ),
    "rlhf_api/dataset/rows.py": (
        (TABLE, f'{ROWS}{TABLE}"ranked": RankedRow, '),
    ),
    "rlhf_api/sections/common.py": (
        (" Sandbox, Trainer,", " Sandbox, Teacher, Trainer,"),
        ("    weights: Weights = Weights()\n", "    teacher: Teacher = Teacher()\n    weights: Weights = Weights()\n"),
    ),
    "rlhf_api/sections/model.py": (
        ("    reward: str | None = None\n", "    teacher: str | None = None\n    reward: str | None = None\n"),
    ),
    "rlhf_api/algorithms/__init__.py": (
        ("    distillation,\n", "    distill,\n    distillation,\n"),
        ("        sft.ALGORITHM,\n", "        sft.ALGORITHM,\n        distill.ALGORITHM,\n"),
    ),
}  # fmt: skip
LOOK = """
import json

from rlhf_api.manifest.load import parse
from rlhf_api.estimate.resources import gpus_each, plan
from rlhf_api.roles import Role
from rlhf_api.contract.run import Process, RunConfig, command, roles_of
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.local.resources.ports import place
from rlhf_operator.supervision.restart_policy import decide
from rlhf_operator.supervision.process_state import ProcessState
from rlhf_trainer.process.settings import frozen_source

job = parse({
    "apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "job"},
    "spec": {
        "algorithm": "distill", "steps": 4, "data": {"train": ["prompts.jsonl"]},
        "model": {"policy": "org/small", "teacher": "org/large", "parameters": 7.6e9},
        "teacher": {"replicas": 2, "dtype": "float16", "backoffLimit": 1,
                    "failureRules": [{"action": "FailJob", "exitCodes": [3]}]},
    },
})
spec, role = job.spec, Role("teacher")
made = Pinned.make("job", spec, Settings(trainer_image="trainer:1", token_key=b"k" * 32).defaults)
pod = build_pod(made, NewPod(role, 1, attempt=1, resume=False), "s")
config = RunConfig(job="job", spec=spec, workdir="/w")
print(json.dumps({
    "roles": roles_of(spec),
    "pod": pod,
    "memory": plan(spec)[role].memory,
    "gpus": gpus_each(spec, role),
    "command": command(config, Process(role, 0, 1, "h", "h:2")),
    "places": [p.name for p in place(config, None)],
    "loads": [frozen_source(config, role).path, role.row.head],
    "starts": [str(a.role) for a in decide(spec, [ProcessState(role, 0)], {}, now=0)],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with the contributor's diff."""
    folder = copied(tmp_path_factory.mktemp("contributor"), "operator", edits=EDITS) / "operator"
    (folder / "rlhf_api" / "algorithms" / "distill.py").write_text(ALGORITHM)
    return folder


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=importing(folder, ROOT / "trainer_image"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def results(copy: Path) -> dict[str, Any]:
    done = python(copy, "-c", LOOK)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_its_processes_are_placed_started_and_commanded(results: dict[str, Any]) -> None:
    assert results["roles"] == ["trainer", "generator", "teacher"]
    assert results["places"] == ["trainer-0", "generator-0", "teacher-0", "teacher-1"]
    assert results["starts"] == ["teacher"]
    assert results["command"] == ["python3", "-P", "-m", "rlhf_trainer.roles.teacher"]
    assert results["loads"] == ["org/large", "causal"]


def test_its_pods_have_the_grace_and_the_probes_of_its_row(results: dict[str, Any]) -> None:
    pod = results["pod"]
    kubernetes_validate.validate(pod, "1.37", strict=True)
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["name"] == "job-teacher-1"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 40
    assert container["readinessProbe"]["httpGet"]["path"] == "/warm"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert "lifecycle" not in container


def test_its_memory_is_that_of_its_own_model(results: dict[str, Any]) -> None:
    assert results["gpus"][0] == 1
    assert results["memory"] == (
        "15.2 GB without activations: 7.6e9 parameters x 2 B; the teacher model is taken to be as large as the policy"
    )


def test_the_definition_has_both_sections(copy: Path) -> None:
    done = python(copy, "-m", "rlhf_api.schema.crd")
    assert done.returncode == 0, done.stderr
    for line in ("teacher:", "distill:", "description: Log-probabilities of a larger model"):
        assert line in done.stdout


def test_the_command_line_knows_both(copy: Path) -> None:
    done = python(copy, "-m", "rlhf_operator.cli", "graph", "distill")
    assert done.returncode == 0, done.stderr
    assert "teacher" in done.stdout
    done = python(copy, "-m", "rlhf_operator.cli", "logs", "--help")
    assert "teacher" in done.stdout


def test_rows_of_its_own_kind_are_read_and_refused_by_their_model(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "operator")
    edit(
        tmp_path / "operator" / "rlhf_api" / "algorithms" / "distill.py",
        ("        Generate(),\n", '        Dataset(rows="ranked"),\n'),
        ("import POLICY, SEQUENCES, Generate,", "import POLICY, SEQUENCES, Dataset,"),
    )
    file, manifest = tmp_path / "rows.jsonl", tmp_path / "job.yaml"
    spec = {"algorithm": "distill", "steps": 1, "data": {"train": [str(file)]}}
    job = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "job"},
        "spec": spec | {"model": {"policy": "org/small", "teacher": "org/large"}},
    }
    manifest.write_text(json.dumps(job))
    validate = ("-m", "rlhf_operator.cli", "validate", str(manifest))
    file.write_text('{"prompt": "p", "ranked": ["best", "worst"]}\n')
    done = python(tmp_path / "operator", *validate)
    assert done.returncode == 0, done.stderr
    with file.open("a") as more:
        more.write('{"prompt": "p", "ranked": ["alone"]}\n')
    done = python(tmp_path / "operator", *validate)
    assert done.returncode != 0
    assert f"{file}:2: ranked: " in done.stderr


def test_a_role_without_a_row_is_an_error_at_once(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "operator")
    edit(tmp_path / "operator" / "rlhf_api" / "roles.py", (ROW, 'TEACHER = "teacher"'))
    done = python(tmp_path / "operator", "-m", "rlhf_api.schema.crd")
    assert done.returncode != 0
    assert "TypeError: role 'teacher' has no row" in done.stderr


def test_a_graph_that_calls_a_model_of_no_role_is_refused(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "operator")
    edit(
        tmp_path / "operator" / "rlhf_api" / "algorithms" / "distill.py",
        ('"teacher", "teacher", "causal"', '"judge", "judge", "causal"'),
    )
    done = python(tmp_path / "operator", "-c", LOOK)
    assert done.returncode != 0
    assert "'teach' calls 'judge', which is neither trained nor the model of a role" in done.stderr
