"""Generation ahead of training with two real generators, of which one is killed in the middle of a broadcast."""

from tests.support.rlhf import SENTIMENT, succeed

STALENESS = 2


def test_no_token_is_older_than_the_bound_though_a_generator_dies(chain, tmp_path):
    finished = succeed(
        SENTIMENT / "ppo.yaml",
        tmp_path / "run",
        *chain.overrides,
        *("spec.steps=6", "spec.evaluation.everySteps=3", f"spec.rollout.maxStaleness={STALENESS}"),
        *("spec.generator.replicas=2", "spec.weights.bucketMegabytes=1", "spec.weights.timeoutSeconds=10.0"),
        RLHF_FAULTS="tests.support.faults:kill_generator_in_broadcast",
    )
    assert finished.status["roles"]["generator"]["restarts"] == 1
    assert [line["step"] for line in finished.steps] == [1, 2, 3, 4, 5, 6]
    ages = [line["staleness_max"] for line in finished.steps]
    assert max(ages) == STALENESS, "it runs ahead, and no further"
    assert all(0 < line["importance_effective_share"] <= 1.001 for line in finished.steps)
    assert finished.steps[0]["logprob_difference"] < 1e-4
    ledger = finished.status["ledger"]
    assert (ledger["lost"], ledger["dropped"]) == (0, 0)
