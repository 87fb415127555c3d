"""A step that is not finite ends the run, and nothing of it is left."""

import pytest
from tests.support.rlhf import SENTIMENT, run

from rlhf_api.problems import InvalidJob
from rlhf_trainer.training.health import check_finite


@pytest.mark.parametrize("name", ["loss", "policy_loss", "critic_grad_norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_not_finite_is_named(name, value):
    figures = {"loss": 1.0, "policy_loss": -0.5, "critic_grad_norm": 3.0, "kl_mean": float("nan")}
    check_finite(figures, 7)  # a mean over nothing is no divergence
    with pytest.raises(InvalidJob, match=rf"diverged in step 7: {name} {value}\."):
        check_finite(figures | {name: value}, 7)


@pytest.mark.slow
def test_weights_that_are_not_finite_are_neither_recorded_nor_saved(tmp_path):
    rate = ("spec.optimizer.learningRate=1e30", "spec.optimizer.warmupSteps=0")
    saved = ("spec.checkpoint.everySteps=1", "spec.checkpoint.keepLast=10")
    done = run(SENTIMENT / "sft.yaml", tmp_path / "w", "spec.steps=6", *rate, *saved)
    assert done.code == 1
    assert (
        "trainer-0 exited with code 78: spec.optimizer.learningRate: training diverged in step" in done.output
    )
    assert "started again" not in done.output, "it would end the same"
    last = done.status["lastCheckpoint"]["step"]
    assert 1 <= last < 6
    assert [line["step"] for line in done.steps] == list(range(1, last + 1))
