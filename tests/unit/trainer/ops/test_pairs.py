"""Pairs of sampled responses: which they are, and their loss, against plain loops in double precision."""

import math
from dataclasses import replace

import pytest
import torch
from tests.unit.trainer.ops.made import columns, context, groups
from tests.unit.trainer.ops.test_losses import BUDGETS, moved, summed

from rlhf_trainer.ops import COMPUTE
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.updates.updates import trained_rows


def without_logprobs(made: Columns) -> Columns:
    return replace(made, tokens={name: each for name, each in made.tokens.items() if name != "logprobs"})


def pairs_by_hand(made: Columns, scores: list[float]) -> list[tuple[int, int]]:
    """The best and the worst row of each prompt, in the order of prompts."""
    by_position = sorted(groups(made).items())
    return [
        (max(rows, key=lambda i: scores[i]), min(rows, key=lambda i: scores[i])) for _, rows in by_position
    ]


@pytest.mark.parametrize("buffer", [0, 1])
def test_scores_less_the_penalty_of_length_decide(buffer):
    """The last response, the only one of five tokens, is its prompt's best without a penalty, and the worst with it."""
    made = columns()
    scores = [*made["scores"].tolist()[:-1], float(made["scores"].max()) + 1]
    ctx = context("online_dpo", f"overlongBuffer: {buffer}, overlongPenalty: 50" if buffer else "")
    choice = COMPUTE["best_and_worst"](made.with_rows(scores=torch.tensor(scores)), ctx)["preference"]
    expected = [0.0] * len(scores)
    for best, worst in pairs_by_hand(made, [*scores[:-1], scores[-1] - 50 * buffer]):
        expected[best], expected[worst] = 1.0, -1.0
    assert choice.tolist() == expected


def test_one_of_equal_scores_is_drawn_by_seed_and_step():
    made, ctx = (
        columns().with_rows(scores=torch.tensor([1.0, 1.0, 0.0, 2.0, 2.0, 2.0, 0.0, 1.0])),
        context("online_dpo"),
    )
    drawn = [
        COMPUTE["best_and_worst"](made, replace(ctx, step=step))["preference"].tolist() for step in range(20)
    ]
    assert {tuple(each[:3]) for each in drawn} == {(1.0, 0.0, -1.0), (0.0, 1.0, -1.0)}
    assert {tuple(each[3:]) for each in drawn} == {(0.0, 0.0, 0.0, -1.0, 1.0)}
    again = [
        COMPUTE["best_and_worst"](made, replace(ctx, step=step))["preference"].tolist() for step in range(20)
    ]
    assert again == drawn


@pytest.mark.parametrize(
    "own", ["beta: 0.4", "beta: 0.4, margin: 0.7, likelihoodCoefficient: 0.2", "loss: simpo"]
)
def test_the_loss_of_sampled_pairs_and_its_gradient(own):
    ctx, made = context("online_dpo", own), without_logprobs(columns())
    made = COMPUTE["best_and_worst"](made, ctx)
    output, lengths, s = moved(columns())[:, 0], made.lengths.tolist(), ctx.settings
    exact = output.clone().requires_grad_()
    of_rows, reference = exact.split(lengths), made["reference_logprobs"].double().split(lengths)
    rewards = [
        s.scale * ((p - q).sum() if s.has_reference else p.mean())
        for p, q in zip(of_rows, reference, strict=True)
    ]
    pairs = pairs_by_hand(made, made["scores"].tolist())
    expected = torch.zeros(()).double()
    for best, worst in pairs:
        odds = (s.margin - (rewards[best] - rewards[worst])).exp()
        expected = expected + ((1 + odds).log() - s.likelihood * of_rows[best].mean()) / len(pairs)
    expected.backward()
    (node,) = ctx.spec.graph.train
    rows = torch.tensor(pairs).flatten()
    index, trained = made.sequences.response_index(rows), trained_rows(node, made)
    assert trained["scores"].tolist() == made["scores"][rows].tolist()
    for budget in BUDGETS:
        leaf = output.clone().requires_grad_()
        loss, named = summed(node.loss, trained, ctx, leaf[index], budget, group=ctx.spec.graph.group(node))
        loss.backward()
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        torch.testing.assert_close(leaf.grad, exact.grad, rtol=1e-5, atol=1e-7)
        margins = [float((rewards[best] - rewards[worst]).detach()) for best, worst in pairs]
        assert named["reward_margin"] == pytest.approx(sum(margins) / len(pairs), rel=1e-5)
        apart = (output[index] - made["sampled_logprobs"][index]).abs()
        assert named["logprob_difference"] == pytest.approx(float(apart.mean()), rel=1e-6)
        kl = float((output[index] - made["reference_logprobs"][index]).mean())
        assert math.isclose(named["kl_mean"], kl, rel_tol=1e-6)
