"""examples/arithmetic as a user runs it: fine-tuned on sums of which half are wrong, and better by GRPO."""

from tests.support.rlhf import ROOT, better_by_grpo, lines

EXAMPLE = ROOT / "examples" / "arithmetic"


def test_it_learns_to_add(tmp_path):
    done = better_by_grpo(EXAMPLE, tmp_path, 600)
    shares = [line["mean"] for line in lines(done.workdir / "evaluation.jsonl")]
    assert shares[0] < 0.65, "half of the answers that it imitates are wrong"
    assert shares[-1] > shares[0] + 0.1
