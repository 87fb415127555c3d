"""`rlhf selftest`: the small job that it derives, and its verdicts; tests/jobs/small/test_selftest.py runs it."""

import json
import struct
from pathlib import Path

import pytest
import yaml
from tests.support.rlhf import ROOT

from rlhf_api.contract.run import roles_of
from rlhf_api.host.strict_yaml import dumped
from rlhf_api.manifest.load import composed, load
from rlhf_api.roles import Role
from rlhf_operator.selftest import checks
from rlhf_operator.selftest.derived import as_arguments, first_half, second_half
from rlhf_operator.selftest.left import from_lines, left_by, of_file, to_lines
from rlhf_operator.selftest.trial import Observations, roles_to_kill
from rlhf_operator.selftest.watch import Kill

PPO = ROOT / "examples" / "sentiment" / "ppo.yaml"
EXAMPLES = sorted(file for file in (ROOT / "examples").rglob("*.yaml") if "kind: RLHFJob" in file.read_text())
HOSTILE = (
    *(
        "optimizer.schedule=cosine",
        "optimizer.floor=0.1",
        "optimizer.decaySteps=5",
        "optimizer.warmupSteps=100",
        "optimizer.criticLearningRate=0.1",
    ),
    *("rollout.maxStaleness=2", "weights.everySteps=2", "replay.maxReplayEpisode=4", "sampling.topK=20"),
    "sampling.structuredOutputs={choice: [a, b]}",
    *(
        "sampling.responsesPerPrompt=8",
        "ppo.overlongFilter=true",
        "ppo.overlongBuffer=20",
        "ppo.overlongPenalty=2.0",
        "ppo.dynamicSampling=3",
        "ppo.balanceTokens=true",
        "ppo.criticWarmupSteps=9",
    ),
    *("ppo.minibatchSize=512", "ppo.valueMinibatchSize=256", "reward.scale=-1.0", "reward.clip=[0, 1]"),
    *("reward.engine=vllm", "reward.dtype=float32"),
    *("trainer.backoffLimit=0", "reward.failureRules=[{action: FailJob, exitCodes: [137]}]"),
    *("checkpoint.store=s3://of/the-job", "trackers=[{kind: wandb}]"),
    *(
        "health.rules=[{metric: kl_mean, above: 0, action: fail}]",
        "checkpoint.startFrom={store: s3://b/a, step: 3}",
    ),
)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_both_halves_of_every_example_are_valid(file):
    job = load(file)
    for overrides in (first_half(job.spec), second_half(job.spec, 20)):
        derived = load(file, as_arguments(overrides))
        assert roles_of(derived.spec) == roles_of(job.spec)
        assert derived.spec.model == job.spec.model


@pytest.mark.parametrize(
    "file", [PPO, *(file for file in EXAMPLES if file.stem == "sft")], ids=lambda f: f.stem
)
@pytest.mark.parametrize("keys", ["train_batch_size: 256", "train_micro_batch_size_per_gpu: 4"])
def test_a_step_that_deepspeeds_names_size_is_made_small_too(file, keys, tmp_path):
    job = tmp_path / "job.yaml"
    text = yaml.safe_load(dumped(composed(file)))
    ranks = load(file).spec.trainer.ranks
    text["spec"]["trainer"] = {"processesPerReplica": ranks, "deepspeed": yaml.safe_load(f"{{{keys}}}")}
    text["spec"].get("ppo", {}).pop("minibatchSize", None)
    text["spec"]["data"]["promptsPerStep"] = 256
    job.write_text(dumped(text))
    for overrides in (first_half(load(job).spec), second_half(load(job).spec, 20)):
        assert load(job, as_arguments(overrides)).spec.data.prompts_per_step <= 64


def test_nothing_of_a_job_can_hide_a_fault_or_write_elsewhere():
    spec = load(PPO, HOSTILE).spec
    small = load(PPO, [*HOSTILE, *as_arguments(first_half(spec))]).spec
    assert small.optimizer.learning_rate == small.optimizer.critic_learning_rate == 0
    assert small.checkpoint.store is small.checkpoint.start_from is None
    assert (small.trackers, small.health.rules, small.reward.failure_rules) == ((), (), ())
    assert small.trainer.backoff_limit == 1
    assert small.rollout.max_staleness == small.replay.window == 0
    assert small.data.prompts_per_step * small.sampling.responses_per_prompt == small.ppo.minibatch_size == 64
    assert (small.ppo.overlong_filter, small.ppo.critic_warmup_steps) == (False, 0)
    assert small.reward.scale == -1, "the first half has the job's own reward"
    assert small.sampling.structured_outputs == spec.sampling.structured_outputs
    learning = load(PPO, [*HOSTILE, *as_arguments(second_half(spec, 20))]).spec
    assert learning.optimizer.learning_rate == pytest.approx(10 * spec.optimizer.learning_rate)
    assert (learning.steps, learning.reward.scale, learning.reward.clip) == (20, 1, None)
    assert learning.optimizer.warmup_steps == 0
    assert learning.sampling.structured_outputs is None


@pytest.mark.parametrize("main", [(), ("model.reward=null",), ("reward.stepScores=last",)])
def test_a_canary_is_scored_without_any_reward_model(main):
    given = [*main, "reward.models=[{name: a, model: m}]", "reward.dtype=float32"]
    given += ["data.stepSeparator=;;"] if "Scores" in "".join(main) else []
    assert load(PPO, given).spec.reward_models
    learning = load(PPO, [*given, *as_arguments(second_half(load(PPO, given).spec, 20))]).spec
    assert learning.reward_models == ()


def test_each_role_that_the_job_has_is_killed():
    spec = load(PPO).spec
    assert roles_to_kill(spec) == [Role.REWARD, Role.REFERENCE, Role.TRAINER, Role.GENERATOR]
    assert roles_to_kill(load(PPO, ["generator.sharedWithTrainer=true"]).spec)[-1] is Role.TRAINER
    assert roles_to_kill(load(ROOT / "examples/sentiment/sft.yaml").spec) == [Role.TRAINER]


# Figures of a good run; each test below spoils some.
LINES = [
    {
        "step": step,
        "logprob_difference": 1e-4,
        "logprob_outlier_share": 0.0,
        "logprob_outliers": 0.0,
        "logprob_difference_max": 2e-4,
        "reward_mean": 0.2 + 0.02 * max(0, step - 8),
        "reward_std": 0.1,
    }
    for step in range(1, 29)
]
LEDGER = {"issued": [[0, 448]], "trained": [[0, 448]], "filtered": [], "dropped": {}}
GOOD = Observations(
    kills={
        role: Kill(role, 1, 0.0, 5.0) for role in (Role.REWARD, Role.REFERENCE, Role.TRAINER, Role.GENERATOR)
    },
    still=[(4, {"policy/a": "1", "policy/b": "2"}), (7, {"policy/a": "1", "policy/b": "2"})],
    stopped=7,
    wanted=28,
    cause="",
    lines=LINES,
    ended=28,
    state={"ledger": LEDGER},
)


def judged(observations: Observations, *overrides: str, file: Path = PPO) -> dict[str, checks.Check]:
    return {check.name: check for check in checks.judged(load(file, overrides).spec, observations, 16, 4)}


def spoiled(**fields) -> Observations:
    return Observations(**{**vars(GOOD), **fields})


def failing(observations: Observations) -> dict[str, str]:
    return {name: check.seen for name, check in judged(observations).items() if check.passed is False}


def test_a_good_run_passes_all():
    assert {check.passed for check in judged(GOOD).values()} == {True}
    assert len(judged(GOOD)) == 9


@pytest.mark.parametrize(
    ("observations", "check", "words"),
    [
        (spoiled(still=[GOOD.still[0], (7, {"policy/a": "1", "policy/b": "3"})]), "drift", "1 of 2 parameters"),
        (spoiled(still=GOOD.still[:1]), "drift", "not reached"),
        (spoiled(lines=[{**LINES[0], "logprob_difference": 0.5}, *LINES[1:]]), "agreement", "0.5 at most, in step 1"),
        (spoiled(lines=[{**line, "logprob_difference": float("nan")} for line in LINES]), "agreement", "nan"),
        (
            spoiled(lines=[{**LINES[0], "logprob_outliers": 2.0, "logprob_outlier_share": 2 / 379}, *LINES[1:]]),
            "agreement",
            "by more than 1 nat at 2 tokens",
        ),
        (spoiled(lines=[{**line, "reward_mean": 0.2} for line in LINES]), "canary", "from 0.200 to 0.200"),
        (spoiled(lines=[{**line, "reward_std": 9.0} for line in LINES]), "canary", "it must rise by"),
        (spoiled(ended=12), "resume", "ended with 12 of 28"),
        (spoiled(state={"ledger": {**LEDGER, "trained": [[0, 200], [203, 448]]}}), "ledger", "lost 3, trained twice 3"),
        (spoiled(state={"ledger": {**LEDGER, "issued": [[0, 432]], "trained": [[0, 432]]}}), "ledger", "twice 16"),
        (
            spoiled(state={"ledger": {**LEDGER, "trained": [[1, 448]], "dropped": {"it timed out": [[0, 1]]}}}),
            "ledger",
            "dropped 1: it timed out",
        ),
        (spoiled(kills={**GOOD.kills, Role.TRAINER: Kill(Role.TRAINER, 3, 0.0)}), "kill trainer", "no further step"),
        (spoiled(kills={}), "kill generator", "not reached"),
        (spoiled(lines=LINES[:12]), "canary", "only 4 steps"),
        (spoiled(stopped=None, wanted=None), "resume", "not reached"),
        (spoiled(stopped=None, wanted=None), "canary", "not reached"),
        (spoiled(state=None), "ledger", "not reached"),
        (spoiled(lines=[]), "agreement", "not reached"),
    ],
)  # fmt: skip
def test_a_fault_fails_its_check_with_what_was_seen(observations, check, words):
    failed = failing(observations)
    assert words in failed[check]
    assert judged(observations)[check].look or words == "not reached"


def test_a_difference_that_is_not_finite_fails_the_agreement(tmp_path):
    """It is null in metrics.jsonl."""
    null = [json.dumps({**line, "logprob_difference": None}) + "\n" for line in LINES]
    (tmp_path / "metrics.jsonl").write_text("".join(null))
    lines = from_lines(to_lines(left_by(tmp_path, []))).lines
    assert "nan" in failing(spoiled(lines=lines))["agreement"]


def test_what_does_not_apply_says_why():
    given = judged(spoiled(state={"position": 28 * 16}), file=ROOT / "examples" / "sentiment" / "sft.yaml")
    assert {name: check.passed for name, check in given.items()} == {
        "drift": True,
        "agreement": None,
        "kill trainer": True,
        "resume": True,
        "ledger": True,
        "canary": None,
    }
    assert "no responses are sampled" in given["agreement"].seen
    off = judged(GOOD, "health.logprobDifference=0.0", "health.logprobOutliers=1")["agreement"]
    assert "no limit" in off.seen


def test_a_row_that_is_drawn_twice_fails_the_ledger():
    assert checks.ledger({"position": 28 * 16 + 8}, 28, 16).passed is False


def test_digests_are_of_each_tensor():
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {}}
    ).encode()
    one, other = (of_file(struct.pack("<Q", len(header)) + header + bytes([0, 0, 0, n])) for n in (1, 2))
    assert one.keys() == other.keys() == {"a"}
    assert one != other
