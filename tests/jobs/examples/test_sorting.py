"""examples/sorting as a user runs it: made, fine-tuned, and better by GRPO one version ahead, on a vLLM of its own."""

from tests.support.rlhf import ROOT, imitate, improve_by_grpo, lines

EXAMPLE = ROOT / "examples" / "sorting"


def test_it_learns_to_sort(tmp_path):
    done = improve_by_grpo(EXAMPLE, imitate(EXAMPLE, tmp_path / "sft", 300), tmp_path / "grpo", 20)
    shares = [line["mean"] for line in lines(done.workdir / "evaluation.jsonl")]
    assert shares[0] < 0.65, "half of the answers that it imitates are wrong"
    assert shares[-1] > shares[0] + 0.2
    assert max(step["staleness_max"] for step in done.steps) <= 1
