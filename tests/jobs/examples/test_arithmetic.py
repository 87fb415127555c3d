"""examples/arithmetic as a user runs it: fine-tuned on sums of which half are wrong, and better by GRPO."""

from tests.jobs.examples.conftest import ARITHMETIC
from tests.support.rlhf import improve_by_grpo, lines


def test_it_learns_to_add(summing, tmp_path):
    done = improve_by_grpo(ARITHMETIC, summing, tmp_path / "grpo", 14)
    shares = [line["mean"] for line in lines(done.workdir / "evaluation.jsonl")]
    assert shares[0] < 0.65, "half of the answers that it imitates are wrong"
    assert shares[-1] > shares[0] + 0.1
