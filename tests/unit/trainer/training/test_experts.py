"""Jobs of a mixture of experts: updates replay the experts that the policy chose before the step."""

from dataclasses import replace

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from tests.unit.trainer.graph.specs import spec_of
from tests.unit.trainer.training import running
from tests.unit.trainer.training.running import Job
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.forward.routers import Routers
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.rollout.from_trainer import TrainerRollouts
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.tensors.expert_rows import ExpertRows

REPLAY = "spec.experts.replay=policy"
ROLLOUT = "spec.experts.replay=rollout"
SHARED = "spec.generator.sharedWithTrainer=true"
UPDATES = "klCoefficient: 0, minibatchSize: 20, epochs: 2"


@pytest.fixture(autouse=True)
def mixtures(monkeypatch):
    def engine(_kind, _labels, rate, _lora=None) -> TrainedModel:
        torch.manual_seed(3)
        tokenizer = byte_tokenizer()
        model = Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=16,
                num_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=32,
                max_position_embeddings=64,
                initializer_range=0.2,
                pad_token_id=tokenizer.pad_token_id,
            )
        ).float()
        return TrainedModel(
            model,
            Optimizer().model_copy(update={"learning_rate": rate}),
            Trainer(),
            deepspeed={"zero_optimization": {"stage": 0}},
            micro_batch_tokens=256,
            pad_token_id=tokenizer.pad_token_id,
        )

    monkeypatch.setattr(running, "engine", engine)


def test_every_update_of_a_step_has_the_experts_of_the_policy_before_it(monkeypatch):
    job = Job("grpo", UPDATES, REPLAY)
    policy, chosen, updated = job.models["policy"], [], []
    infer_routed, update = policy.infer_routed, policy.update

    def infer(*given):
        chosen.append(infer_routed(*given))
        return chosen[-1]

    def watch(sequences, *given):
        updated.append(sequences)
        return update(sequences, *given)

    monkeypatch.setattr(policy, "infer_routed", infer)
    monkeypatch.setattr(policy, "update", watch)
    job.steps(0, 1)
    ((_, routing),) = chosen
    known = {tuple(row.flatten().tolist()) for row in routing}
    assert len(updated) == 4
    for sequences in updated:
        assert {tuple(row.flatten().tolist()) for row in sequences.routing} <= known
    last = updated[-1]
    _, moved = infer_routed(last, ResponseLogprobs(), last.response_lengths)
    assert not torch.equal(moved.sort().values, last.routing.sort().values), "the policy moved on"
    assert Job("grpo", UPDATES).steps(0, 1).weights() != job.weights()


def test_responses_that_a_checkpoint_holds_are_routed_again():
    cut = Job("grpo", UPDATES, REPLAY).steps(0, 1)
    cut.task.publish(1)
    cut.task.collect(1)
    after = Job("grpo", UPDATES, REPLAY).restore(cut.snapshot(1))
    assert after.task._pending.columns.sequences.routing is None, "no checkpoint holds it"
    after.task.collect(1)
    was, now = (job.task._pending.columns for job in (cut, after))
    assert torch.equal(was.sequences.routing, now.sequences.routing)
    assert torch.equal(was["logprobs"], now["logprobs"])


class Routed(TrainerRollouts):
    """Responses as those of generators that chose experts at random."""

    def answer(self, *given, **more) -> Responses:
        responses, draw = super().answer(*given, **more), torch.Generator().manual_seed(self.version)
        known = [len(r.prompt.tokens) + len(r.tokens) - 1 for r in responses.rollouts]
        parts = [torch.rand(count, 2, 8, generator=draw).topk(2).indices.short().numpy() for count in known]
        routed = [replace(r, experts=ExpertRows([p])) for r, p in zip(responses.rollouts, parts, strict=True)]
        return replace(responses, rollouts=routed)


def routed_job(*more: str) -> Job:
    unshared = "spec.generator.sharedWithTrainer=false"
    make = lambda ctx, models: Routed(ctx, models["policy"])  # noqa: E731
    return Job("grpo", UPDATES, ROLLOUT, unshared, *more, rollouts=make)


def test_the_generator_s_experts_are_those_of_old_log_probabilities_and_of_every_update(monkeypatch):
    job, updated = routed_job(), []
    policy = job.models["policy"]
    update = policy.update

    def watch(sequences, *given):
        updated.append(sequences)
        return update(sequences, *given)

    monkeypatch.setattr(policy, "update", watch)
    job.task.publish(0)
    job.task.collect(0)
    columns = job.task._pending.columns
    routing, model = columns.sequences.routing, job.initial
    for forward, replays in (
        (Forward(model, 256, 257, routers=Routers.of(model)), True),
        (Forward(model, 256, 257), False),
    ):
        old = infer(forward, columns.sequences, ResponseLogprobs(), columns.lengths)
        assert torch.allclose(old, columns["logprobs"], rtol=0, atol=1e-5) == replays
    metrics = job.task.train(0)
    known = {tuple(row.flatten().tolist()) for row in routing}
    assert len(updated) == 4
    for sequences in updated:
        assert {tuple(row.flatten().tolist()) for row in sequences.routing} <= known
    assert 0.5 < metrics["experts_replaced_share"] < 1, "of 28 pairs of experts one is the router's own"


@pytest.mark.parametrize("more", [(), ("spec.replay.maxReplayEpisode=1", "spec.replay.samplesPerStep=20")])
def test_a_checkpoint_holds_the_experts_of_generators(more):
    whole, cut = routed_job(*more).steps(0, 3).weights(), routed_job(*more).steps(0, 1)
    cut.task.publish(1)
    cut.task.collect(1)
    snapshot = cut.snapshot(1)
    after = routed_job(*more).restore(snapshot)
    was, now = (job.task._pending.columns.sequences.routing for job in (cut, after))
    assert torch.equal(was, now)
    assert after.steps(1, 3).weights() == whole


@pytest.mark.parametrize(
    ("algorithm", "settings", "more", "says"),
    [
        ("sft", "", (ROLLOUT,), "no generator samples the responses of this algorithm"),
        ("grpo", "", (ROLLOUT, SHARED), "the trainer samples by its own routers"),
        ("grpo", "klCoefficient: 0", (), "no pass of the policy before its updates"),
        ("sft", "", (), "no pass of the policy before its updates"),
        ("grpo", UPDATES, ("spec.replay.maxReplayEpisode=2",), "responses of earlier steps have none"),
        ("grpo", UPDATES, ("spec.trainer.sequenceParallelSize=2",), "ranks that share sequences have none"),
    ],
)
def test_a_job_without_choices_to_replay_is_refused(algorithm, settings, more, says):
    with pytest.raises(
        InvalidJob, match=rf"spec.experts.replay: replays what (the|vLLM's) routers chose, and .*{says}"
    ):
        spec_of(algorithm, settings, REPLAY, *more)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("enable-prefix-caching=false", "from its prefix cache alone"),
        ("no-enable-prefix-caching=true", "from its prefix cache alone"),
        ("pipeline-parallel-size=2", "no experts from pipelines"),
    ],
)
def test_an_engine_that_returns_no_experts_is_refused(argument, says):
    with pytest.raises(
        InvalidJob, match=rf"spec.generator.engineArguments.{argument.partition('=')[0]}: .*{says}"
    ):
        spec_of("grpo", "", ROLLOUT, f"spec.generator.engineArguments.{argument}")
