"""Generation ahead of training with two real generators, of which one is killed in the middle of a broadcast."""

from tests.support.rlhf import SENTIMENT, lines, succeed

STALENESS = 2
SETS = "[{name: greedy, data: [HELD], temperature: 0}, {name: four, data: [HELD], samples: 4}]"


def test_no_token_is_older_than_the_bound_though_a_generator_dies(chain, tmp_path):
    held_out = tmp_path / "heldout.jsonl"
    held_out.write_text("".join((SENTIMENT / "heldout.jsonl").open().readlines()[:16]))
    judge = "function: 'examples.sentiment.judge:positive', everySteps: 6"
    evaluation = f"spec.evaluation={{{judge}, data: null, sets: {SETS.replace('HELD', str(held_out))}}}"
    finished = succeed(
        SENTIMENT / "ppo.yaml",
        tmp_path / "run",
        *chain.overrides,
        *("spec.steps=6", evaluation, f"spec.rollout.maxStaleness={STALENESS}"),
        "spec.rollout.inFlight=keep",  # unlike tests/jobs/small/test_environment.py
        *("spec.sampling.topP=0.9", "spec.sampling.topK=20"),
        *("spec.generator.replicas=2", "spec.weights.bucketMegabytes=1", "spec.weights.timeoutSeconds=120.0"),
        RLHF_FAULTS="tests.support.faults:kill_generator_in_broadcast",
    )
    assert finished.status["roles"]["generator"]["restarts"] == 1, finished.output
    assert [line["step"] for line in finished.steps] == [1, 2, 3, 4, 5, 6]
    ages = [line["staleness_max"] for line in finished.steps]
    assert max(ages) == STALENESS, "it runs ahead, and no further"
    assert all(0 < line["importance_effective_share"] <= 1.001 for line in finished.steps)
    assert finished.steps[0]["logprob_difference"] < 1e-4, "over the tokens that each one was sampled from"
    compared = [line["logprob_difference"] for line in finished.steps if "logprob_difference" in line]
    assert max(compared) < 1e-4, "of tokens that the present weights sampled, where others are older too"
    assert finished.steps[0]["ratio_outside_share"] == 0
    assert abs(finished.steps[0]["kl_mean"]) < 1e-4, "the reference's are too"
    ledger = finished.status["ledger"]
    assert (ledger["lost"], ledger["dropped"]) == (0, 0)
    judged = lines(finished.workdir / "evaluation.jsonl")
    assert [(line["step"], line["set"]) for line in judged] == [
        (step, name) for step in (0, 6) for name in ("greedy", "four")
    ]
    for greedy, four in zip(judged[::2], judged[1::2], strict=True):
        assert four["count"] == 4 * greedy["count"], "vLLM answers greedily, and four times"
        assert four["mean"] <= four["best_of_2"] <= four["best_of_4"]
