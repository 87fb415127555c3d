"""Jobs of a mixture of experts: updates replay the experts that the policy chose before the step."""

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
from rlhf_trainer.models.trained_model import TrainedModel

REPLAY = "spec.experts.replay=policy"
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


@pytest.mark.parametrize(
    ("algorithm", "settings", "more", "says"),
    [
        ("grpo", "klCoefficient: 0", (), "no pass of the policy before its updates"),
        ("sft", "", (), "no pass of the policy before its updates"),
        ("grpo", UPDATES, ("spec.replay.maxReplayEpisode=2",), "responses of earlier steps have none"),
        ("grpo", UPDATES, ("spec.trainer.sequenceParallelSize=2",), "ranks that share sequences have none"),
    ],
)
def test_a_job_without_choices_to_replay_is_refused(algorithm, settings, more, says):
    with pytest.raises(
        InvalidJob, match=rf"spec.experts.replay: replays what the routers chose, and .*{says}"
    ):
        spec_of(algorithm, settings, REPLAY, *more)
