"""Loads of experts and the loss that evens them out, against Transformers' function and by hand."""

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from rlhf_trainer.maths.routing import balance_loss, count_replaced, expert_loads, load_statistics


@pytest.fixture
def logits():
    return torch.randn(9, 5, generator=torch.Generator().manual_seed(0))


def test_a_sequence_alone_has_transformers_loss_and_padding_counts_nowhere(logits):
    owners = torch.tensor([2, 0, 0, 1, 1, 1, 2, 1, 1])  # 2 is padding
    chosen, lengths = logits.topk(2).indices, torch.tensor([2, 5])
    loads = expert_loads(chosen, owners, 2, 5)
    assert loads.sum(1).tolist() == [4, 10]
    expected = sum(
        load_balancing_loss_func((logits[owners == i],), 5, 2) * lengths[i] for i in range(len(lengths))
    )
    assert balance_loss(logits, loads, owners, lengths).item() == pytest.approx(float(expected), rel=1e-6)


def test_the_gradient_is_of_the_probabilities_alone(logits):
    own = logits.clone().requires_grad_()
    loads = expert_loads(logits.topk(1).indices, torch.zeros(9, dtype=torch.int64), 1, 5)
    balance_loss(own, loads, torch.zeros(9, dtype=torch.int64), torch.tensor([9])).backward()
    weights = 5 * loads[0] / 9
    p = logits.softmax(-1)
    torch.testing.assert_close(own.grad, p * (weights - (p * weights).sum(-1, keepdim=True)))


def test_statistics_of_even_and_uneven_loads():
    assert load_statistics(torch.tensor([[3.0, 3.0]])) == pytest.approx(
        {"expert_share_max": 0.5, "expert_entropy": 1.0, "experts_unused_share": 0.0}
    )
    assert load_statistics(torch.tensor([[4.0, 0.0], [2.0, 2.0]])) == pytest.approx(
        {"expert_share_max": 1.0, "expert_entropy": 0.5, "experts_unused_share": 0.25}
    )


def test_tokens_whose_replayed_experts_are_others_are_counted_whatever_their_order():
    own = torch.tensor([[0, 1], [1, 2], [3, 0], [3, 0]])
    replayed = torch.tensor([[1, 0], [1, 3], [-1, -1], [2, 1]], dtype=torch.int16)
    assert count_replaced(own, replayed).tolist() == [2, 3]
