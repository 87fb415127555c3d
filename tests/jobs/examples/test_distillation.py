"""examples/distillation with a teacher made here: the student nears it by the teacher's log-probabilities alone, and is
right more often."""

from statistics import fmean

from tests.jobs.examples.conftest import ARITHMETIC
from tests.support.rlhf import ROOT, finish, lines, start, succeed

EXAMPLE = ROOT / "examples" / "distillation"
WINDOW = 6
"""Steps over which a mean is taken."""


def test_a_larger_model_teaches_a_smaller_one(summing, tmp_path):
    student = start(EXAMPLE / "student.yaml", tmp_path / "student", "spec.checkpoint.everySteps=600")
    teacher = succeed(  # on right answers alone, which the student never sees
        ARITHMETIC / "sft.yaml",
        tmp_path / "teacher",
        *("spec.steps=80", "spec.optimizer.learningRate=0.001", "spec.model.create=null"),
        f"spec.model.policy={summing.workdir / 'policy'}",
        f"spec.data.train=[{ARITHMETIC / 'prompts.jsonl'}]",
    )
    assert finish(student, tmp_path / "student").code == 0
    done = succeed(
        EXAMPLE / "distillation.yaml",
        tmp_path / "distillation",
        f"spec.model.policy={tmp_path / 'student' / 'policy'}",
        f"spec.model.reference={teacher.workdir / 'policy'}",
        *("spec.steps=32", "spec.evaluation.everySteps=32"),
    )
    divergences = [step["kl_mean"] for step in done.steps]
    assert fmean(divergences[-WINDOW:]) < fmean(divergences[:WINDOW]) / 2
    assert {step["reward_mean"] for step in done.steps} == {0.0}, "the reward has weight 0"
    shares = [line["mean"] for line in lines(done.workdir / "evaluation.jsonl")]
    assert shares[-1] > shares[0] + 0.1
