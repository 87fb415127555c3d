"""Numbers that go on from step to step: they are part of each snapshot, and a resumed run is the same bit for bit."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.unit.trainer.replay.ppo_worker import engine
from tests.unit.trainer.training.running import Job, resumed_is_whole
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_api.algorithms.dpo import ALGORITHM as DIRECT
from rlhf_api.algorithms.dpo import DPO
from rlhf_api.dataset.rows import AnswerRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.graph import POLICY, Graph, Infer
from rlhf_api.spec import Spec
from rlhf_trainer.checkpoint.reading import MissingTensor
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.maths.values import DECAY
from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.ops.compute import kl_coefficient
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.updates.entropy_control import adapt_entropy_coefficient

WARMING_UP = "klCoefficient: 0.1, klTarget: 0.5, klHorizon: 200, criticWarmupSteps: 2"
EMPTY = ("sampling", "generator", "reward")
ADAPTIVE = "klTarget: 0.5, klHorizon: 200, minibatchSize: 16"


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", f"klCoefficient: 0.1, {ADAPTIVE}, normalizeValues: true"),
        ("grpo", f"klCoefficient: 0.1, {ADAPTIVE}"),
        ("reinforce_pp", "klCoefficient: 0.05, epochs: 2, minibatchSize: 8"),
        ("gspo", "klCoefficient: 0.1, overlongFilter: true"),
        ("ppo", "klCoefficient: 0.1, referenceEma: 0.9, valueEma: 0.5"),
        ("online_dpo", "minibatchSize: 16, epochs: 2"),
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
        off = line["kl_mean"] * line["response_length_mean"] / 0.5 - 1
        expected *= 1 + min(max(off, -0.2), 0.2) * 32 / 200
    assert job.task.state()["algorithm"]["kl_coefficient"] == pytest.approx(expected, rel=1e-9)
    assert job.lines[0]["kl_coefficient"] > job.lines[1]["kl_coefficient"], "there is no KL at the start"


def test_the_entropy_bonus_acts_after_steps_of_low_entropy_alone():
    """He et al. 2025: the coefficient changes by a fixed amount a step."""
    free = Job("grpo", "klCoefficient: 0").steps(0, 5)
    entropies = sorted(line["entropy"] for line in free.lines)
    for target, acts in ((entropies[-1] + 1, True), (entropies[0] - 1, False)):
        job = Job("grpo", f"klCoefficient: 0, entropyCoefficient: 0.1, entropyTarget: {target}").steps(0, 5)
        coefficients = [line["entropy_coefficient"] for line in job.lines]
        assert coefficients == pytest.approx([0.1 * step if acts else 0.0 for step in range(5)])
        assert (job.weights() == free.weights()) is not acts
        assert not acts or job.lines[-1]["entropy"] > free.lines[-1]["entropy"]


def test_the_entropy_bonus_pauses_after_a_step_of_high_entropy():
    ctx = Job("grpo", "klCoefficient: 0, entropyCoefficient: 0.1, entropyTarget: 1.0").op_ctx
    coefficients = []
    for entropy in (0.5, 1.0, 2.0, 0.5, 0.5):
        metrics = {"entropy": entropy}
        adapt_entropy_coefficient(ctx, metrics)
        coefficients.append(metrics["entropy_coefficient"])
    assert coefficients == pytest.approx([0.0, 0.1, 0.2, 0.0, 0.2])


def test_a_resumed_run_goes_on_with_the_entropy_coefficient():
    settings = "klCoefficient: 0, entropyCoefficient: 0.05, entropyTarget: 9.0"
    resumed_is_whole(lambda: Job("grpo", settings), stop=2, end=4)


@pytest.mark.parametrize("target", ["", ", klTarget: 0.5"])
def test_another_coefficient_in_the_settings_is_gone_on_with(target):
    """A clone changes the setting; the checkpoint holds the earlier adaptive coefficient, which applies no longer."""
    before = Job("ppo", f"klCoefficient: 0.1, {ADAPTIVE}").steps(0, 2).snapshot(2)
    after = Job("ppo", f"klCoefficient: 0.3, minibatchSize: 16{target}").restore(before)
    assert kl_coefficient(after.op_ctx) == 0.3
    after.steps(2, 4)
    if target:
        first, second = (line["kl_coefficient"] for line in after.lines)
        assert (first, second) == (0.3, pytest.approx(0.3, rel=0.2))
        assert second != first, "from where it adapts again"
    same = Job("ppo", f"klCoefficient: 0.1{target}").restore(before)
    assert (kl_coefficient(same.op_ctx) == 0.1) is (not target)


def test_a_step_that_measures_no_kl_keeps_the_coefficient():
    """The critic's warm-up, where the policy has no update and its log-probabilities are nobody's input."""
    job = Job("ppo", f"{WARMING_UP}, klIn: loss, klEstimator: k3").steps(0, 4)
    assert ["kl_mean" in line for line in job.lines] == [False, False, True, True]
    assert [line.get("kl_coefficient") for line in job.lines[:3]] == [None, None, 0.1]


def test_a_policy_that_is_not_trained_yet_keeps_the_coefficient():
    """Its KL is 0 whatever the coefficient, so adapting would only lower it."""
    job = Job("ppo", WARMING_UP).steps(0, 4)
    assert [line["kl_mean"] for line in job.lines[:2]] == pytest.approx([0.0] * 2, abs=1e-6)
    assert [line.get("kl_coefficient") for line in job.lines[:3]] == [None, None, 0.1]


def test_a_moving_reference_follows_the_policy():
    """With decay 0 it equals the policy before the step, so the KL is 0; with a larger decay it lags behind."""
    follows, stays = (
        Job("grpo", f"klCoefficient: 0.1, referenceEma: {share}").steps(0, 3).lines for share in (0, 0.9)
    )
    assert [line["kl_mean"] for line in follows] == pytest.approx([0.0] * 3, abs=1e-7)
    assert all(abs(line["kl_mean"]) > 1e-6 for line in stays[1:])


def test_a_moving_average_that_a_checkpoint_lacks_begins_with_its_weights():
    """A clone that turns the average on: it begins with the checkpoint's weights, not with the job's initial ones."""
    before = Job("ppo", "klCoefficient: 0.1").steps(0, 2)
    after = Job("ppo", "klCoefficient: 0.1, referenceEma: 0.9").restore(before.snapshot(2))
    assert after.steps(2, 3).lines[0]["kl_mean"] == pytest.approx(0.0, abs=1e-6)


def with_moving_reference(spec: Spec, settings: DPO) -> Graph:
    rows, reference, train = DIRECT.graph(spec, settings).nodes
    assert isinstance(reference, Infer)
    return Graph((rows, replace(reference, model=POLICY, average=0.5), train))


OWN_DPO = replace(DIRECT, graph=with_moving_reference)


def test_a_moving_reference_follows_a_policy_that_is_trained_on_given_responses():
    """In an algorithm of one's own; with decay 0.5 it is half way between two steps' weights."""
    alone = ("spec.model={policy: org/policy, dtype: float32}", *(f"spec.{n}={{}}" for n in EMPTY))
    custom = "spec.custom={rows: pairs, scores: false, settings: {beta: 0.2}}"
    job = Job(f"{__name__}:OWN_DPO", "", custom, *alone).steps(0, 1)
    (average,) = job.task._learner.averages.values()
    before, now = job.initial.state_dict(), dict(job.models["policy"].named_tensors())
    for name, tensor in average.state():
        torch.testing.assert_close(tensor, (before[name] + now[name]) / 2)


def test_values_are_of_the_moving_critic():
    plain, same, other = (
        Job("ppo", f"klCoefficient: 0.01{more}").steps(0, 3).weights()
        for more in ("", ", valueEma: 0", ", valueEma: 0.9")
    )
    assert same == plain, "it keeps nothing of itself"
    assert other != plain


TEXT = [AnswerRow(prompt=f"t{i}", answer="abc") for i in range(5)]


def with_text(coefficient: float = 0.5) -> Job:
    mixed = f"spec.pretraining={{data: [text.jsonl], rowsPerUpdate: 2, coefficient: {coefficient}}}"
    return Job("grpo", "klCoefficient: 0, minibatchSize: 16", mixed, text=TEXT)


def test_pretraining_text_is_learned_beside_and_goes_on_after_a_resume():
    """Two rows an update, two updates a step: the position is that of the seventeenth row after four steps."""
    whole = resumed_is_whole(with_text, stop=2, end=4)
    assert whole.task.state()["pretraining"] == 2 * 2 * 4
    losses = [line["pretraining_loss"] for line in whole.lines]
    assert losses[-1] < losses[0]
    assert with_text(1e-9).steps(0, 4).lines[-1]["pretraining_loss"] > losses[-1], "nothing pulls there"


def test_a_clone_that_is_the_first_to_have_pretraining_text_begins_with_its_first_row():
    before = Job("grpo", "klCoefficient: 0, minibatchSize: 16").steps(0, 2).snapshot(2)
    after = with_text().restore(before).steps(2, 3)
    assert after.task.state()["pretraining"] == 2 * 2


class PartlyUsed(LlamaForCausalLM):
    """With weights that no forward pass of text reads, as those of a model for pictures too."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.pictures = torch.nn.Linear(4, 4)


def test_a_model_with_weights_that_get_no_gradient_is_saved_and_goes_on():
    def update(model: TrainedModel) -> None:
        sequences = Sequences.pack([([1, 2], [3, 4])])
        model.update(sequences, ResponseLogprobs(), lambda logprobs, _: (-logprobs.sum(), {}), 0.01)

    whole, after = engine(PartlyUsed, 2, 0.01), engine(PartlyUsed, 2, 0.01)
    update(whole)
    saved = {name: tensor.clone() for name, tensor in training_state(whole)}
    assert saved["exp_avg/pictures.weight"].count_nonzero() == 0
    load_training_state(after, saved.__getitem__)
    for model in (whole, after):
        update(model)
    for (name, one), (_, other) in zip(training_state(whole), training_state(after), strict=True):
        assert torch.equal(one, other), name


def test_a_checkpoint_of_other_models_is_told_as_that_and_not_as_damaged():
    """Such as that of a clone with another algorithm or model."""
    before = Job("grpo", "klCoefficient: 0").steps(0, 1).snapshot(1)
    real = before.tensor

    def tensor(group: str, name: str) -> torch.Tensor:
        if group not in before.groups:
            raise MissingTensor(f"the snapshot of step 1 has no tensor {name!r} in {group!r}")
        return real(group, name)

    before.tensor = tensor
    with pytest.raises(InvalidJob, match=r"spec\.model\.critic: .* no tensor 'step' in 'critic'; keep"):
        Job("ppo", "klCoefficient: 0.1").restore(before)
    wide = before.groups["policy"]["parameters/lm_head.weight"]
    before.groups["policy"]["parameters/lm_head.weight"] = torch.cat([wide, wide])
    with pytest.raises(
        InvalidJob, match=r"spec\.model\.policy: .* has shape \(516, 32\), the model's \(258, 32\)"
    ):
        Job("grpo", "klCoefficient: 0").restore(before)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [("dpo", "grpo", "trained on given responses"), ("grpo", "dpo", "sampled its responses")],
)
def test_a_checkpoint_of_the_other_kind_of_training_is_refused(before, after, says):
    """Its position is in another dataset: as many rows of this one would be skipped."""
    cut = Job(before).steps(0, 1).snapshot(1)
    with pytest.raises(InvalidJob, match=rf"spec\.algorithm: .*{says}; start anew"):
        Job(after).restore(cut)


def test_the_critic_has_minibatches_of_its_own(monkeypatch):
    """32 responses a step: one update of the policy, four of the critic."""
    job = Job("ppo", "klCoefficient: 0.01, valueMinibatchSize: 8")
    sizes: dict[str, list[int]] = {name: [] for name in job.models}
    names, update = {id(model): name for name, model in job.models.items()}, TrainedModel.update

    def counted(self: TrainedModel, sequences: Any, *rest: Any) -> dict[str, float]:
        sizes[names[id(self)]].append(len(sequences))
        return update(self, sequences, *rest)

    monkeypatch.setattr(TrainedModel, "update", counted)
    job.steps(0, 1)
    assert sizes == {"policy": [32], "critic": [8] * 4}


def test_the_critic_learns_normalised_returns_and_its_moments_are_json():
    job = Job("ppo", "klCoefficient: 0.01, normalizeValues: true")
    before = job.task.state()["algorithm"]
    job.steps(0, 3)
    state = json.loads(json.dumps(job.task.state()))["algorithm"]["values"]
    assert before == {}, "a snapshot is written while the next steps train: it holds what was"
    tokens = [line["response_length_mean"] * 32 for line in job.lines]
    assert state["weight"] == pytest.approx(sum(n * DECAY**age for age, n in enumerate(reversed(tokens))))
    assert 0.2 < state["mean"] < 1.0


def test_a_snapshot_of_an_earlier_release_begins_anew():
    """Such a snapshot has no running state, and no count of filtered prompts."""
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
