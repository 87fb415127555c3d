"""Entropies against -sum p log p in plain Python; log-probabilities of a linear layer against whole logits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.logprobs import (
    CHUNK_ELEMENTS,
    entropies,
    linear_logprobs,
    linear_top_logprobs,
    token_logprobs,
)

row = st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5)


def probabilities(logits: list[float]) -> list[float]:
    weights = [math.exp(z - max(logits)) for z in logits]
    return [w / sum(weights) for w in weights]


def entropy(logits: torch.Tensor) -> torch.Tensor:
    return entropies(torch.log_softmax(logits, -1))


def test_by_hand():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -90.0, 0.0, -90.0], [500.0, 400.0, 400.0, 400.0]])
    torch.testing.assert_close(entropy(logits), torch.tensor([math.log(4), math.log(2), 0.0]))


@given(st.lists(row, min_size=1, max_size=6), st.floats(-1000, 1000, width=32))
def test_is_the_sum_of_p_log_p_wherever_the_logits_lie(rows, shift):
    expected = [-sum(p * math.log(p) for p in probabilities(z) if p) for z in rows]
    at_zero = entropy(torch.tensor(rows))
    assert at_zero.dtype == torch.float32
    torch.testing.assert_close(at_zero, torch.tensor(expected), atol=2e-6, rtol=1e-5)
    # a shift of 1000 rounds the logits themselves at 6e-5
    torch.testing.assert_close(entropy(torch.tensor(rows) + shift), at_zero, atol=2e-3, rtol=1e-4)


@given(row)
def test_gradient_is_minus_p_times_log_p_plus_entropy(logits):
    p = probabilities(logits)
    h = -sum(q * math.log(q) for q in p if q)
    z = torch.tensor([logits], requires_grad=True)
    entropy(z).sum().backward()
    expected = [-q * (math.log(q) + h) if q else 0.0 for q in p]
    torch.testing.assert_close(z.grad[0], torch.tensor(expected), atol=1e-5, rtol=1e-4)


@given(st.integers(1, 12))
def test_chunks_of_rows_change_nothing(size):
    logits = torch.randn(12, 50, generator=torch.Generator().manual_seed(1))
    parts = torch.cat([entropy(chunk) for chunk in logits.split(size)])
    assert parts.tolist() == pytest.approx(entropy(logits).tolist(), abs=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 5, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layers_logprobs_and_gradients_are_those_of_its_whole_logits(monkeypatch, rows, bias):
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 2 * 11)  # two rows at a time
    generator = torch.Generator().manual_seed(rows)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    inputs = [drawn(rows, 6), drawn(11, 6), *([drawn(11)] if bias else [])]
    targets, upstream = torch.randint(11, (rows,), generator=generator), drawn(rows, 2).detach()
    expected = token_logprobs(torch.nn.functional.linear(*inputs), targets, 0.7, "gradient")
    output = linear_logprobs(*inputs, *([] if bias else [None]), targets, 0.7, entropy="gradient")
    torch.testing.assert_close(output, expected)
    for own, whole in zip(
        torch.autograd.grad(output, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(own, whole)


def test_an_entropy_that_is_only_looked_at_has_no_gradient():
    hidden, weight = torch.randn(3, 6, requires_grad=True), torch.randn(11, 6)
    output = linear_logprobs(hidden, weight, None, torch.tensor([1, 2, 3]), entropy="value")
    (gradient,) = torch.autograd.grad(output[:, 1].sum(), [hidden])
    assert not gradient.any()


def test_chunks_of_bfloat16_are_summed_up_in_float32(monkeypatch):
    monkeypatch.setitem(
        CHUNK_ELEMENTS, "cpu", 11
    )  # one row at a time: 512 small contributions to each weight
    hidden = torch.full((512, 4), 1.0, dtype=torch.bfloat16)
    weight = torch.zeros(11, 4, dtype=torch.bfloat16, requires_grad=True)
    linear_logprobs(hidden, weight, None, torch.zeros(512, dtype=torch.int64)).sum().backward()
    assert weight.grad[0].tolist() == pytest.approx([512 * 10 / 11] * 4, rel=4e-3)


@pytest.mark.parametrize("rows_at_a_time", [2, 100])
def test_a_head_in_float32_rounds_no_logit_of_a_model_in_bfloat16(monkeypatch, rows_at_a_time):
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", rows_at_a_time * 50)
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(*shape, generator=generator) for shape in ((7, 32), (50, 32), (50,)))
    inputs = [each.bfloat16().requires_grad_() for each in drawn]
    targets = torch.randint(50, (7,), generator=generator)
    wide = [each.detach().double().requires_grad_() for each in inputs]
    exact = torch.log_softmax(wide[0] @ wide[1].T + wide[2], -1)
    expected = exact.gather(1, targets[:, None])
    errors = {}
    for float32 in (True, False):
        output = linear_logprobs(*inputs, targets, float32=float32)
        errors[float32] = float((output - expected).detach().abs().max())
        assert output.dtype == torch.float32
    assert errors[True] < 1e-5 < 1e-2 < errors[False], errors
    output = linear_logprobs(*inputs, targets, float32=True)
    for own, whole in zip(
        torch.autograd.grad(output.sum(), inputs), torch.autograd.grad(expected.sum(), wide), strict=True
    ):
        assert own.dtype == torch.bfloat16
        torch.testing.assert_close(own.double(), whole, rtol=2e-2, atol=2e-2)
    top = linear_top_logprobs(*(each.detach() for each in inputs), 3, 1.0, float32=True)
    torch.testing.assert_close(top[:, :3].double(), exact.topk(3).values.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows_at_a_time", [1, 2, 100])
def test_log_probabilities_over_a_sampling_mask_are_those_of_its_tokens_alone(monkeypatch, rows_at_a_time):
    """Against plain Python over the kept tokens: values, entropies and gradients, which are 0 for what was left out.
    A row of -1 has no mask; a kept token may stand there twice."""
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", rows_at_a_time * 5)
    rows = [[0.5, -1.0, 2.0, 9.0, 0.0], [3.0, 1.0, -2.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]]
    kept_tokens, targets = [[2, 0, 2], [1, 1, 1], [-1, -1, -1]], [2, 1, 4]
    temperature, upstream = 0.8, [[1.0, 0.3], [0.5, -2.0], [-1.0, 0.7]]
    values, gradients = [], []
    for logits, mask, target, (of_logprob, of_entropy) in zip(
        rows, kept_tokens, targets, upstream, strict=True
    ):
        among = sorted(set(mask)) if mask[0] >= 0 else list(range(5))
        p = dict(zip(among, probabilities([logits[i] / temperature for i in among]), strict=True))
        h = -sum(q * math.log(q) for q in p.values())
        values.append([math.log(p[target]), h])
        gradients.append(
            [
                ((i == target) - p[i]) / temperature * of_logprob
                - p[i] * (math.log(p[i]) + h) / temperature * of_entropy
                if i in p
                else 0.0
                for i in range(5)
            ]
        )
    hidden = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    mask, direction = torch.tensor(kept_tokens), torch.tensor(upstream, dtype=torch.float64)
    through_layer = linear_logprobs(
        hidden, torch.eye(5, dtype=torch.float64), None, torch.tensor(targets), temperature,
        entropy="gradient", kept_tokens=mask,
    )  # fmt: skip
    of_logits = token_logprobs(hidden, torch.tensor(targets), temperature, "gradient", mask)
    for computed in (through_layer, of_logits):
        torch.testing.assert_close(
            computed, torch.tensor(values, dtype=torch.float64), rtol=1e-12, atol=1e-12
        )
        (gradient,) = torch.autograd.grad(computed, [hidden], direction)
        torch.testing.assert_close(
            gradient, torch.tensor(gradients, dtype=torch.float64), rtol=1e-12, atol=1e-12
        )
