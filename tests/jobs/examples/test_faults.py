"""A run goes on after the death of a generator during a broadcast, of the reward, of the trainer, and after Ctrl-C."""

import json

import pytest
from tests.support.rlhf import SENTIMENT, stop_after_first_step, succeed
from tests.support.run_processes import processes

SMALL = (
    "spec.data.promptsPerStep=16",
    "spec.ppo.minibatchSize=16",
    "spec.ppo.epochs=1",
    "spec.ppo.klCoefficient=0",  # without a reference: a process less
    "spec.evaluation=null",
)


def test_a_generator_killed_as_an_adapter_comes_costs_nothing_but_a_detour(chain, ppo, tmp_path):
    """Two generators; one is killed and comes back. Two ranks, which have each weight in part: they gather the frozen
    ones for those who lack them, and with each version the matrices alone."""
    finished = succeed(
        SENTIMENT / "ppo.yaml",
        tmp_path / "run",
        *chain.overrides,
        *("spec.evaluation=null", "spec.optimizer={learningRate: 0.01}", "spec.steps=5"),
        *("spec.model.lora={policy: {rank: 4}}", "spec.trainer.processesPerReplica=2"),
        "spec.trainer.deepspeed.zero_optimization.stage=3",
        *("spec.generator.replicas=2", "spec.weights.bucketMegabytes=1", "spec.weights.timeoutSeconds=120.0"),
        RLHF_FAULTS="tests.support.faults:kill_generator_before_the_first_bytes",
    )
    assert finished.status["roles"]["generator"]["restarts"] == 1
    assert [line["step"] for line in finished.steps] == [1, 2, 3, 4, 5]
    trainer = finished.log("trainer-0")
    assert "generator-1 did not take weight version 2" in trainer
    # Every prompt was answered in every step, by the trained policy: what both sides compute is the same.
    assert all(line["logprob_difference"] < 1e-4 for line in finished.steps)
    assert finished.steps[-1]["kl_mean"] > 0.01, "far from the base"
    # Few bytes, but for the frozen weights to who came back.
    matrices, base = 77_824, 1_874_944
    assert "generator-0, generator-1: received the frozen weights" in trainer
    sent = [line["broadcast_bytes"] for line in finished.steps]
    assert sent == [matrices, matrices, matrices, 2 * matrices + base, matrices]
    assert all(line["generators_paused_seconds"] > 0 for line in finished.steps)
    assert "generator-1 joined with weight version 3" in trainer
    # The same seed gave the same first step, though two generators shared it here and one did it all there.
    for figure in ("tokens", "reward_mean", "response_length_mean"):
        assert finished.steps[0][figure] == pytest.approx(ppo.steps[0][figure], abs=1e-5)


@pytest.fixture(scope="module")
def undisturbed(chain, tmp_path_factory):
    """Four steps without a generator process, whose random numbers are all the trainer's own."""
    overrides = (*chain.overrides, *SMALL, *("spec.generator.sharedWithTrainer=true", "spec.steps=4"))
    return overrides, succeed(
        SENTIMENT / "ppo.yaml", tmp_path_factory.mktemp("undisturbed") / "run", *overrides
    )


@pytest.fixture(scope="module")
def stricken(undisturbed, tmp_path_factory):
    """The same, whose reward dies in step 2 and whose trainer does in step 3."""
    return succeed(
        SENTIMENT / "ppo.yaml",
        tmp_path_factory.mktemp("stricken") / "run",
        *undisturbed[0],
        "spec.checkpoint.everySteps=1",
        RLHF_FAULTS="tests.support.faults:kill_reward_then_trainer",
    )


def policy(finished):
    return (finished.workdir / "policy" / "model.safetensors").read_bytes()


def test_training_waits_for_a_reward_that_died(stricken):
    assert stricken.status["roles"]["reward"]["restarts"] == 1
    assert len(stricken.steps) == 4


def test_a_trainer_that_dies_goes_on_from_its_checkpoint(undisturbed, stricken):
    assert stricken.status["roles"]["trainer"]["restarts"] == 1
    assert [line["step"] for line in stricken.steps] == [1, 2, 3, 4]
    assert policy(stricken) == policy(undisturbed[1]), "the same parameters, bit for bit"


def test_ctrl_c_leaves_nothing_behind_and_resumes(undisturbed, tmp_path):
    overrides, expected = undisturbed
    manifest, workdir = SENTIMENT / "ppo.yaml", tmp_path / "run"
    stopped = stop_after_first_step(manifest, workdir, *overrides, timeout=300)
    assert stopped.code == 130, stopped.output
    assert "--resume" in stopped.output
    assert stopped.status["phase"] == "Suspended"
    assert not processes(workdir)

    resumed = succeed(manifest, workdir, *overrides, flags=("--resume",))
    assert [line["step"] for line in resumed.steps] == [1, 2, 3, 4]
    assert policy(resumed) == policy(expected), "the same parameters, bit for bit"
    samples = [(run.workdir / "samples.jsonl").read_text() for run in (resumed, expected)]
    assert samples[0] == samples[1], "no step twice, and none missing"
    assert {json.loads(line)["step"] for line in samples[0].splitlines()} == {1, 2, 3, 4}
