"""Seconds of a step, predicted: the work of each phase by hand, and rates that a run reached."""

import pytest
from tests.unit.trainer.graph.specs import OFFLINE, spec_of

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.duration import Batch, Machine, Work, of_step, predicted, rates
from rlhf_api.estimate.parameters import shape_of
from rlhf_api.estimate.sizes import Size

N, R = 1e9, 2e9
FOUND = {"policy": Size(N), "reward": Size(R)}
MACHINE = Machine(flops=1e14, memory=1e12, link=1e10)
SCORED = (
    *("spec.sampling={maxNewTokens: 300, responsesPerPrompt: 4}", "spec.reward.functions=[]"),
    "spec.model.reward=r",
)


def work(algorithm: str, settings: str = "", *overrides: str, filled: float = 1.0) -> Work:
    scored = () if algorithm in OFFLINE else SCORED
    spec = spec_of(algorithm, settings, "spec.data.maxPromptLength=100", *scored, *overrides)
    return Work.of(spec, FOUND, Batch.of(spec, filled))


def test_the_work_of_grpo_is_that_of_its_graph():
    """32 responses of 400 tokens; one forward pass is 2 operations a parameter and token."""
    tokens = 32 * 400
    job_work = work("grpo", "klCoefficient: 0.1, epochs: 2, minibatchSize: 16", "spec.model.dtype=bfloat16")
    assert job_work.train == 2 * 6 * N * tokens
    assert job_work.score == 2 * R * tokens, (
        "the reward model, beside one pass of the policy and one of the reference"
    )
    assert job_work.generate == 300 * N * 2, "all at once: each token of the longest reads the weights"
    assert job_work.generating == 2 * N * tokens
    assert job_work.broadcast == N * 2
    assert work("grpo", filled=0.5).train == 6 * N * tokens / 2


def test_a_mixture_computes_with_the_experts_of_a_token_and_reads_all():
    spec = spec_of("grpo", "klCoefficient: 0.1", *SCORED)
    dense, mixture = ({"policy": Size(N, active=a), "reward": Size(R / 100)} for a in (None, N / 10))
    was, now = (Work.of(spec, sizes, Batch.of(spec)) for sizes in (dense, mixture))
    assert (now.generate, now.broadcast) == (was.generate, was.broadcast)
    for phase in ("generating", "score", "train"):
        assert getattr(now, phase) == pytest.approx(getattr(was, phase) / 10)


def test_frozen_parts_are_not_sent_with_each_version():
    shape = shape_of({"model_type": "llama", "hidden_size": 40, "vocab_size": 500})
    spec = spec_of("grpo", "", *SCORED, "spec.model.freeze=[embed_tokens]", "spec.model.dtype=bfloat16")
    sent = Work.of(spec, {**FOUND, "policy": Size(N, shape)}, Batch.of(spec)).broadcast
    assert sent == (N - 500 * 40) * 2


@pytest.mark.parametrize(
    ("override", "phase", "factor"),
    [
        ("spec.trainer.processesPerReplica=4", "train", 1 / 4),
        ("spec.reward.replicas=2", "score", 1 / 2),
        ("spec.generator.replicas=2", "generating", 1 / 2),
        ("spec.generator.replicas=2", "generate", 1),
        ("spec.generator.tensorParallelSize=2", "generate", 1 / 2),
        ("spec.generator.concurrentRequests=10", "generate", 4),
        ("spec.generator.sharedWithTrainer=true", "broadcast", 0),
        ("spec.model.lora={policy: {rank: 8}}", "train", 4 / 6),
        ("spec.model.lora={policy: {rank: 8}}", "broadcast", 0),
        ("spec.trainer.gradientCheckpointing=full", "train", 8 / 6),
        ("spec.generator.dtype=float32", "generate", 2),
    ],
)
def test_what_a_setting_does_to_a_phase(override, phase, factor):
    before, after = (
        work("grpo", "", "spec.model.dtype=bfloat16"),
        work("grpo", "", "spec.model.dtype=bfloat16", override),
    )
    assert getattr(after, phase) == pytest.approx(factor * getattr(before, phase))


def test_each_update_of_the_policy_trains_on_pretraining_rows_too():
    """4 rows of 150 tokens beside each 16 of 32 responses of 400, twice over; the critic has none."""
    overrides = "spec.data.maxResponseLength=50", "spec.pretraining={data: [text.jsonl], rowsPerUpdate: 4}"
    settings = "epochs: 2, minibatchSize: 16"
    more = work("grpo", settings, *overrides).train - work("grpo", settings).train
    assert more == 2 * 6 * N * (2 * 4 * 150)
    assert work("ppo", settings, *overrides).train - work("ppo", settings).train == more


def test_of_sampled_pairs_two_responses_to_a_prompt_are_trained_on():
    """Of 32 responses, four to a prompt, all are generated and scored."""
    paired, whole = work("online_dpo"), work("grpo", "klCoefficient: 0.1")
    assert paired.train == whole.train / 2
    assert (paired.generating, paired.score) == (whole.generating, whole.score)


def test_offline_algorithms_have_fewer_phases():
    lengths = ("spec.data.maxResponseLength=200",)
    assert work("sft", "", *lengths).train == 6 * N * 8 * 300
    assert work("dpo", "", *lengths).train == 2 * 6 * N * 8 * 300
    assert set(predicted(work("sft"), MACHINE)) == {"train"}
    assert set(predicted(work("dpo"), MACHINE)) == {"score", "train"}


def test_seconds_are_work_over_rates():
    job_work = work("grpo", "", "spec.model.dtype=bfloat16")
    seconds = predicted(job_work, MACHINE)
    assert seconds == {
        "generate": 300 * 2e9 / 1e12,
        "score": 2 * R * 12800 / 1e14,
        "train": 6 * N * 12800 / 1e14,
        "broadcast": 2e9 / 1e10,
    }
    slow = predicted(job_work, Machine(flops=1e13, memory=1e12, link=1e10))
    assert slow["generate"] == 2 * N * 12800 / 1e13, "bound by operations now"
    assert predicted(job_work, Machine(flops=1e14)) == {**seconds, "generate": None, "broadcast": None}
    spec = spec_of("grpo")
    assert of_step(spec, seconds) == pytest.approx(sum(seconds.values()))
    assert of_step(spec, {**seconds, "train": None}) is None
    ahead = spec_of("grpo", "", "spec.rollout.maxStaleness=1")
    assert of_step(ahead, {**seconds, "generate": 100.0}) == 100.0
    seldom = spec_of("grpo", "", "spec.weights.everySteps=4")
    assert of_step(seldom, seconds) == pytest.approx(sum(seconds.values()) - 3 / 4 * seconds["broadcast"])


def test_replayed_responses_are_trained_on_too():
    plain, own = work("grpo"), work("grpo", "", "spec.replay={maxReplayEpisode: 2, replaySampleFn: 'a:b'}")
    twice = work("grpo", "", "spec.replay.maxReplayEpisode=2")
    some = work("grpo", "", "spec.replay={maxReplayEpisode: -1, samplesPerStep: 16}")
    batch = Batch.of(spec_of("grpo"))
    assert twice.train == 2 * plain.train
    assert some.train == pytest.approx(plain.train * (1 + 16 / batch.count))
    assert (own.train, twice.generate) == (plain.train, plain.generate)


def test_responses_that_rows_give_are_not_sampled():
    alone = ("spec.sampling={maxNewTokens: 512}", "spec.reward={}", "spec.model.reward=null")
    given = "teacherTopK: 4, minibatchSize: 8, givenShare: "
    mixed, sampled = (
        Work.of(spec, {"policy": Size(N), "reference": Size(R)}, Batch.of(spec))
        for spec in (spec_of("distillation", f"{given}{share}", *alone) for share in (0.25, 0.0))
    )
    assert mixed.generating == pytest.approx(0.75 * sampled.generating)
    assert mixed.train == sampled.train


def test_copies_of_a_model_in_one_server_share_its_requests():
    four = work("grpo", "", "spec.generator.engineArguments={data-parallel-size: 4}")
    assert four.generating == work("grpo", "", "spec.generator.replicas=4").generating


def test_a_runs_rates_predict_that_run():
    job_work = work("ppo", "", "spec.model.dtype=bfloat16")
    measured = {"generate": 12.0, "train": 30.0, "broadcast": 0.5}
    reached = predicted(job_work, rates(job_work, measured))
    assert {phase: reached[phase] for phase in measured} == pytest.approx(measured)


def test_a_size_that_nobody_knows_is_asked_for():
    with pytest.raises(InvalidJob, match="the size of the policy is not known; set it"):
        Work.of(spec_of("sft"), {}, Batch.of(spec_of("sft")))
