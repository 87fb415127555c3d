"""Losses and advantages of episodes: an environment's replies are read by the models, and never learned."""

from collections.abc import Mapping

import pytest
import torch
from tests.unit.trainer.graph.specs import ONLINE
from tests.unit.trainer.ops.made import columns, context, with_replies
from torch import Tensor

from rlhf_api.graph import Compute, Train
from rlhf_trainer.ops import OpContext, compute_fn, loss_fn, output_fn
from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.updates.updates import trained_rows

VOCABULARY = 7
SETTINGS = {
    "grpo": "lossAggregation: constant, overlongFilter: true, klCoefficient: 0.1",
    "cispo": "entropyCoefficient: 0.1",
}
"""Of algorithms that are tested with other settings than their defaults."""


def prepared(made: Columns, ctx: OpContext) -> Columns:
    """The columns after all functions of the algorithm's graph."""
    for node in ctx.spec.graph.prepare:
        if isinstance(node, Compute):
            made = compute_fn(node.function, ctx.spec)(made, ctx)
    return made


def losses(made: Columns, ctx: OpContext, node: Train, logits: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
    micro = MicroBatch.build(made.sequences, range(len(made)), 0)
    outputs = output_fn(node.output, ctx.spec)(logits, micro)
    return loss_fn(node.loss, ctx.spec)(made, ctx)(outputs, micro)


def predicting(made: Columns) -> tuple[Tensor, Tensor]:
    """Rows and columns in which a model's output predicts response tokens."""
    rows = torch.arange(len(made)).repeat_interleave(made.lengths)
    return rows, made.sequences.response_columns - 1


@pytest.mark.parametrize("algorithm", ONLINE)
def test_a_loss_is_of_sampled_tokens_alone(algorithm):
    """It and its statistics are those of the same responses without replies, given the same outputs there; and no
    output that predicts a reply's token, or anything else that was not sampled, has a gradient."""
    alone, whole = columns(), with_replies(columns())
    assert int(whole.sequences.after_lengths.sum()) > int(whole.lengths.sum()) + 3
    ctx, other = (context(algorithm, SETTINGS.get(algorithm, "")) for _ in range(2))
    alone, whole = prepared(alone, other), prepared(whole, ctx)
    for node in ctx.spec.graph.train:
        alone, whole = trained_rows(node, alone), trained_rows(node, whole)
        size = len(whole), int(whole.sequences.lengths.max()), 1 if node.output == "values" else VOCABULARY
        logits = torch.randn(size, generator=torch.Generator().manual_seed(1)).requires_grad_()
        total, statistics = losses(whole, ctx, node, logits)
        total.backward()
        read = torch.zeros(size[:2], dtype=torch.bool)
        read[predicting(whole)] = True
        assert not logits.grad[~read].any()
        assert logits.grad[read].any()

        without = torch.zeros(len(alone), int(alone.sequences.lengths.max()), size[2])
        without[predicting(alone)] = logits.detach()[predicting(whole)]
        expected, of_alone = losses(alone, other, node, without)
        assert torch.equal(total.detach(), expected)
        assert all(torch.equal(statistics[name].detach(), each) for name, each in of_alone.items())


def test_values_go_from_the_last_token_of_a_turn_to_the_first_of_the_next():
    """By hand: gamma 0.9, lambda 0.8; the reward of the first turn is at its second token."""
    ctx = context("ppo", "gamma: 0.9, gaeLambda: 0.8, whitenAdvantages: false, normalizeValues: false")
    one = with_replies(columns()).select(torch.tensor([0]))
    rewards, values = [0.0, 0.5, 1.0], [0.25, -0.5, 2.0]
    one = one.with_tokens(token_rewards=torch.tensor(rewards), values=torch.tensor(values))
    made = compute_fn("gae", ctx.spec)(one, ctx)
    third = 1.0 - 2.0
    second = 0.5 + 0.9 * 2.0 - -0.5 + 0.72 * third
    first = 0.0 + 0.9 * -0.5 - 0.25 + 0.72 * second
    assert made["advantages"].tolist() == pytest.approx([first, second, third])
    assert made["returns"].tolist() == pytest.approx([first + 0.25, second - 0.5, third + 2.0])
