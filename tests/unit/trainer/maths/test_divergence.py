"""Divergence over a teacher's most probable tokens, against plain Python and against the whole vocabulary."""

import math

import pytest
import torch

from rlhf_trainer.maths.divergence import top_divergence
from rlhf_trainer.maths.logprobs import (
    CHUNK_ELEMENTS,
    linear_logprobs,
    linear_top_logprobs,
    token_logprobs,
    top_logprobs,
)
from rlhf_trainer.tensors.sampling_mask import LEFT_OUT


def distributions(rows: int = 6, size: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    p, q = (2 * torch.randn(rows, size, generator=draw, dtype=torch.float64) for _ in range(2))
    return p.log_softmax(-1), q.log_softmax(-1)


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def by_hand(p: list[float], q: list[float], beta: float) -> float:
    """Over these outcomes; p is the teacher's."""
    if beta in (0, 1):
        return kl(q, p) if beta else kl(p, q)
    m = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_tokens_beside_the_compared_ones_are_one_more_outcome(beta, count):
    p, q = distributions()
    values, ids = p.topk(count)
    expected = []
    for own, policy, chosen in zip(p.exp().tolist(), q.exp().tolist(), ids.tolist(), strict=True):
        outcomes = [[x[i] for i in chosen] for x in (own, policy)]
        expected.append(by_hand(*([*x, 1 - sum(x)] for x in outcomes), beta))
    divergence = top_divergence(q.gather(-1, ids), values, beta)
    assert divergence.tolist() == pytest.approx(expected, abs=1e-9)
    whole = [by_hand(*rows, beta) for rows in zip(p.exp().tolist(), q.exp().tolist(), strict=True)]
    assert all(part <= all_ + 1e-9 for part, all_ in zip(expected, whole, strict=True)), "never more than all"


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("beyond", [0, 4])
def test_over_all_tokens_it_is_the_whole_divergence_with_its_gradient(beta, beyond):
    """Also where the teacher's list goes on beyond the vocabulary, with no tokens."""
    p, _ = distributions()
    logits = distributions()[1].clone().requires_grad_()
    top = top_logprobs(p, p.shape[1] + beyond, 1.0)
    teacher, ids = top[:, : p.shape[1] + beyond].double(), top[:, p.shape[1] + beyond :].long()
    assert (teacher <= LEFT_OUT).sum() == len(p) * beyond
    divergence = top_divergence(logits.log_softmax(-1).gather(-1, ids), teacher, beta)
    (gradient,) = torch.autograd.grad(divergence.sum(), logits)
    q = logits.log_softmax(-1)
    m = torch.log(beta * p.exp() + (1 - beta) * q.exp())
    parts = {0.0: (p.exp() * (p - q)), 1.0: (q.exp() * (q - p))}
    exact = parts.get(beta, beta * p.exp() * (p - m) + (1 - beta) * q.exp() * (q - m)).sum(-1)
    (expected,) = torch.autograd.grad(exact.sum(), logits)
    torch.testing.assert_close(divergence, exact, rtol=0, atol=3e-6)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_equal_distributions_have_no_divergence_and_no_gradient(beta):
    _, q = distributions()
    logits = q.clone().requires_grad_()
    own = logits.log_softmax(-1)[:, :3]
    divergence = top_divergence(own, own.detach(), beta)
    (gradient,) = torch.autograd.grad(divergence.sum(), logits)
    assert divergence.tolist() == pytest.approx([0.0] * len(q), abs=1e-12)
    assert gradient.abs().max() < 1e-9


def test_a_beta_that_is_no_share_is_refused():
    p, q = distributions()
    with pytest.raises(ValueError, match="beta must be from 0 to 1; got 2"):
        top_divergence(q, p, 2.0)


@pytest.mark.parametrize("rows_at_a_time", [1, 2, 100])
@pytest.mark.parametrize("masked", [False, True])
def test_log_probabilities_of_compared_tokens_and_their_gradients(monkeypatch, rows_at_a_time, masked):
    """Through the output layer in chunks, as autograd has it without any; a token may be compared twice."""
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", rows_at_a_time * 7)
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(7, generator=draw, dtype=torch.float64, requires_grad=True)
    targets, compared = torch.tensor([0, 1, 2, 3, 6]), torch.randint(0, 4, (5, 3), generator=draw)
    mask = torch.tensor([[0, 1, 2, 3]] * 4 + [[-1] * 4]) if masked else None
    direction = torch.randn(5, 5, generator=draw, dtype=torch.float64)
    output = linear_logprobs(
        hidden, weight, bias, targets, 0.7, entropy="gradient", kept_tokens=mask, compared=compared
    )
    logits = (hidden @ weight.T + bias) / 0.7
    if masked:
        outside = torch.ones(5, 7, dtype=torch.bool)
        outside[:4, :4] = False
        outside[4] = False
        logits = logits.masked_fill(outside, -1e30)
    p = logits.log_softmax(-1)
    expected = torch.cat([p.gather(-1, targets[:, None]), -(p.exp() * p).sum(-1, keepdim=True)], -1)
    expected = torch.cat([expected, p.gather(-1, compared)], -1)
    torch.testing.assert_close(output, expected)
    leaves = [hidden, weight, bias]
    gradients, of_autograd = (torch.autograd.grad(each, leaves, direction) for each in (output, expected))
    for one, other in zip(gradients, of_autograd, strict=True):
        torch.testing.assert_close(one, other)
    through_logits = token_logprobs(hidden @ weight.T + bias, targets, 0.7, "gradient", mask, compared)
    torch.testing.assert_close(through_logits, expected)


@pytest.mark.parametrize("rows_at_a_time", [1, 100])
def test_the_most_probable_tokens_are_those_of_the_sampling_mask(monkeypatch, rows_at_a_time):
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", rows_at_a_time * 5)
    logits = torch.tensor([[0.0, 5.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    mask = torch.tensor([[0, 2], [-1, -1]])
    top = linear_top_logprobs(logits, torch.eye(5), None, 3, 2.0, mask)
    first = torch.tensor([0.5, 0.0]).log_softmax(0)
    assert top[0, 3:].tolist() == [2, 0, 0]
    assert top[0, :2].tolist() == pytest.approx(first.tolist())
    assert top[0, 2] <= LEFT_OUT
    assert top[1, 3:].tolist() == [4, 3, 2]
    assert top[1, :3].tolist() == pytest.approx((logits[1] / 2).log_softmax(0)[[4, 3, 2]].tolist())
