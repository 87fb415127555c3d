"""examples/arithmetic as a user runs it: fine-tuned on sums of which half are wrong, and better by GRPO."""

from tests.support.rlhf import ROOT, lines, succeed

EXAMPLE = ROOT / "examples" / "arithmetic"


def test_it_learns_to_add(tmp_path):
    succeed(EXAMPLE / "sft.yaml", tmp_path / "sft", "spec.checkpoint.everySteps=600")
    done = succeed(
        EXAMPLE / "grpo.yaml",
        tmp_path / "grpo",
        *(f"spec.model.policy={tmp_path / 'sft' / 'policy'}", "spec.steps=20"),
    )
    shares = [line["mean"] for line in lines(done.workdir / "evaluation.jsonl")]
    assert shares[0] < 0.65, "half of the answers that it imitates are wrong"
    assert shares[-1] > shares[0] + 0.1
