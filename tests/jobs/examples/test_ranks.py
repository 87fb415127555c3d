"""Several trainer ranks: the same job, weights gathered for the generators."""

import json
from collections import Counter

from tests.support.faults import PORTS
from tests.support.rlhf import SENTIMENT, stop_after_first_step, succeed


def test_two_ranks_of_zero_3_feed_a_generator(chain, tmp_path):
    """With `streamDataLoaderType: dynamic`: they train on responses as these arrive."""
    overrides = (*chain.overrides, "spec.evaluation=null", "spec.steps=2", "spec.data.promptsPerStep=16")
    small = (
        "spec.ppo.minibatchSize=6",
        "spec.ppo.epochs=1",
        "spec.ppo.klCoefficient=0",  # without a reference: a process less
        "spec.replay.streamDataLoaderType=dynamic",
    )
    two = ("spec.trainer.processesPerReplica=2", "spec.trainer.deepspeed.zero_optimization.stage=3")
    noted = {"RLHF_FAULTS": "tests.support.faults:note_ports"}
    finished = succeed(SENTIMENT / "ppo.yaml", tmp_path / "two", *overrides, *small, *two, **noted)
    assert [line["step"] for line in finished.steps] == [1, 2]
    assert all(line["logprob_difference"] < 1e-4 for line in finished.steps), "vLLM has the gathered weights"
    assert all(line["staleness"] == 0 for line in finished.steps), "generation waits for the weights"
    ports = json.loads((finished.workdir / PORTS).read_text())
    assert {address for _, address, _ in ports} == {"127.0.0.1"}, "another machine reaches none"
    count = Counter(name for name, _, _ in ports)
    assert count.keys() == {"", "trainer-0", "generator-0", "reward-0"}
    assert (count[""], count["reward-0"]) == (1, 1), "metrics, and scores"
    ledger = finished.status["ledger"]
    assert (ledger["issued"], ledger["trained"], ledger["dropped"], ledger["lost"]) == (32, 32, 0, 0)


def test_bfloat16_on_both_sides_is_measured_while_both_have_the_same_weights(chain, tmp_path):
    """DeepSpeed keeps float32 master weights; the two sides' rounding differs, and the metrics say by how much."""
    finished = succeed(
        SENTIMENT / "ppo.yaml",
        tmp_path / "run",
        *chain.overrides,
        *("spec.evaluation=null", "spec.steps=3", "spec.data.promptsPerStep=16", "spec.ppo.minibatchSize=16"),
        "spec.ppo.klCoefficient=0",
        *("spec.model.dtype=bfloat16", "spec.trainer.deepspeed.zero_optimization.stage=1"),
        "spec.weights.everySteps=2",
    )
    first, second, third = finished.steps
    assert [line["staleness"] for line in (first, second, third)] == [0, 1, 0]
    assert "logprob_difference" not in second, "it was sampled by earlier weights"
    for line in (first, third):
        assert 1e-5 < line["logprob_difference"] < 0.05
        assert 0 <= line["ratio_outside_share"] < 0.1


def test_two_ranks_suspend_together_and_go_on(chain, tmp_path):
    """Both exit on request, with everything saved. The trainer generates, spread over the ranks; the policy with its
    adapter switched off is the reference."""
    overrides = (
        *chain.overrides,
        "spec.evaluation=null",
        "spec.data.promptsPerStep=16",
        "spec.ppo.minibatchSize=16",
    )
    two = ("spec.trainer.processesPerReplica=2", "spec.trainer.deepspeed.zero_optimization.stage=2")
    replay = ("spec.replay.maxReplayEpisode=1", "spec.replay.replaySampleFn=prioritized")
    adapter = "spec.model.lora={policy: {rank: 4}}"
    job = (*overrides, *two, *replay, adapter, "spec.generator.sharedWithTrainer=true", "spec.steps=3")
    stopped = stop_after_first_step(SENTIMENT / "ppo.yaml", tmp_path / "run", *job, timeout=300)
    assert stopped.code == 130, stopped.output
    assert stopped.status["phase"] == "Suspended"
    resumed = succeed(SENTIMENT / "ppo.yaml", tmp_path / "run", *job, flags=("--resume",))
    assert [line["step"] for line in resumed.steps] == [1, 2, 3]
    assert [line["replay_share"] for line in resumed.steps] == [0, 0.5, 0.5]
    assert (resumed.status["ledger"]["trained"], resumed.status["ledger"]["lost"]) == (48, 0)
    assert not (tmp_path / "run" / "logs" / "reference-0.log").exists()
    folder = tmp_path / "run" / "policy-adapter"
    alone = {"adapter_config.json", "adapter_model.safetensors"}
    beside = {"README.md", "generation_config.json", "reward.png", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in folder.iterdir()} == alone | beside
