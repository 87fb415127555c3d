"""Numbers that go on from step to step: they are part of each snapshot, and a resumed run is the same bit for bit."""

import json

import pytest
from tests.training.running import Job, resumed_is_whole

ADAPTIVE = "klTarget: 0.5, klHorizon: 200, minibatchSize: 16"


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", f"klCoefficient: 0.1, {ADAPTIVE}, normalizeValues: true"),
        ("grpo", f"klCoefficient: 0.1, {ADAPTIVE}"),
        ("reinforce_pp", "klCoefficient: 0.05, epochs: 2, minibatchSize: 8"),
        ("gspo", "klCoefficient: 0.1, overlongFilter: true"),
        ("dpo", "beta: 0.2"),
    ],
)
def test_a_resumed_run_is_exact(algorithm, settings):
    if algorithm == "dpo":
        whole = Job("dpo", settings).steps(0, 4)
        after = Job("dpo", settings).restore(Job("dpo", settings).steps(0, 2).snapshot(2)).steps(2, 4)
        assert after.weights() == whole.weights()
        return
    resumed_is_whole(lambda: Job(algorithm, settings), stop=2, end=4)


@pytest.mark.parametrize(
    ("algorithm", "where"), [("ppo", "reward"), ("grpo", "loss"), ("rloo", "reward"), ("grpo", "reward")]
)
def test_the_coefficient_of_the_penalty_moves_towards_its_target(algorithm, where):
    """Ziegler et al. 2019: by the KL of a whole response, and the responses of a step in the horizon."""
    estimator = "" if where == "reward" else ", klEstimator: k3"
    job = Job(algorithm, f"klCoefficient: 0.1, klTarget: 0.5, klHorizon: 200, klIn: {where}{estimator}")
    job.steps(0, 5)
    expected = 0.1
    for line in job.lines:
        assert line["kl_coefficient"] == pytest.approx(expected, rel=1e-9)
        off = line["kl_mean"] * line["answer_length_mean"] / 0.5 - 1
        expected *= 1 + min(max(off, -0.2), 0.2) * 32 / 200
    assert job.task.state()["algorithm"]["kl_coefficient"] == pytest.approx(expected, rel=1e-9)
    assert job.lines[0]["kl_coefficient"] > job.lines[1]["kl_coefficient"], "there is no KL at the start"


def test_a_step_that_measures_no_kl_keeps_the_coefficient():
    """The critic's warm-up, where the policy has no update and its log-probabilities are nobody's input."""
    job = Job(
        "ppo",
        "klCoefficient: 0.1, klTarget: 0.5, klHorizon: 200, klIn: loss, klEstimator: k3, criticWarmupSteps: 2",
    ).steps(0, 4)
    assert ["kl_mean" in line for line in job.lines] == [False, False, True, True]
    assert [line.get("kl_coefficient") for line in job.lines[:3]] == [None, None, 0.1]


def test_the_critic_learns_normalised_returns_and_its_moments_are_json():
    job = Job("ppo", "klCoefficient: 0.01, normalizeValues: true")
    before = job.task.state()["algorithm"]
    job.steps(0, 3)
    state = json.loads(json.dumps(job.task.state()))["algorithm"]["values"]
    assert before == {}, "a snapshot is written while the next steps train: it holds what was"
    assert state["weight"] == sum(line["answer_length_mean"] * 32 for line in job.lines)
    assert 0.2 < state["mean"] < 1.0


def test_a_snapshot_of_an_earlier_release_begins_anew():
    """It has no running state, and none of its ledger's prompts was filtered."""
    cut = Job("ppo", "klCoefficient: 0.01, normalizeValues: true").steps(0, 1).snapshot(1)
    del cut.state["algorithm"], cut.state["ledger"]["filtered"]
    after = Job("ppo", "klCoefficient: 0.01, normalizeValues: true").restore(cut)
    assert after.task.state()["algorithm"] == {}
    assert after.positions("filtered") == []
    assert after.steps(1, 2).ledger().lost == 0


def test_updates_stop_once_the_ratio_has_left_its_bounds():
    """With a bound that any change passes, the minibatch that has left is the policy's last; the critic goes on."""
    held, free = (
        Job("ppo", f"klCoefficient: 0.01, minibatchSize: 8{more}").steps(0, 1)
        for more in (", stopRatio: 1.0000001", "")
    )
    assert held.weights() != free.weights()
    (one,), (other,) = held.lines, free.lines
    assert one["policy_update_kl"] < other["policy_update_kl"]
    assert abs(one["policy_ratio_mean"] - 1) < abs(other["policy_ratio_mean"] - 1)
    assert one["critic_loss"] == other["critic_loss"]
