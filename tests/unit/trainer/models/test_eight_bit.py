"""AdamW with moments in 8 bits: a step, what a checkpoint has of it, and that it learns as with float32."""

import sys
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import cross_entropy

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.models import eight_bit
from rlhf_trainer.models.eight_bit import BLOCK, AdamW8bit, Moment

ADAM = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
NAMES = ("exp_avg", "exp_avg_sq")
COUNT = 10 * BLOCK + 77
"""Elements, the last block of which is not whole."""


@pytest.fixture(autouse=True, params=["cpu", *["cuda"] * torch.cuda.is_available()])
def device(request):
    with torch.device(request.param):
        yield


def noise(count: int = COUNT) -> torch.Tensor:
    """Of magnitudes from 1e-5 to 1, as gradients of different layers have them; a block of zeros is among them."""
    values = torch.randn(count) * 10 ** (-5 * torch.rand(-(-count // BLOCK)).repeat_interleave(BLOCK)[:count])
    values[2 * BLOCK : 3 * BLOCK] = 0.0
    return values


def stepped(steps: int = 4) -> tuple[torch.nn.Parameter, AdamW8bit]:
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(COUNT))
    optimizer = AdamW8bit([{"params": [weights]}], ADAM)
    for _ in range(steps):
        weights.grad = noise()
        optimizer.step()
    return weights, optimizer


def largest_of_blocks(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.abs().max().expand(len(part)) for part in values.split(BLOCK)])


def test_a_step_is_adamw_from_rounded_moments():
    """Equations of Loshchilov and Hutter 2019, algorithm 2, in float64; then both moments are rounded by less than a
    hundredth of the largest of their block."""
    weights, optimizer = stepped()
    for step in range(5, 8):
        gradient, before = noise().double(), weights.detach().double()
        first, second = (optimizer.state[weights][name].read(0, COUNT).double() for name in NAMES)
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        denominator = (second / (1 - 0.95**step)).sqrt() + 1e-8
        expected = before * (1 - 0.01 * 0.01) - 0.01 * (first / (1 - 0.9**step)) / denominator
        weights.grad = gradient.float()
        optimizer.step()
        torch.testing.assert_close(weights.detach().double(), expected, rtol=0, atol=1e-5)
        for name, exact in zip(NAMES, (first, second), strict=True):
            rounded = optimizer.state[weights][name].read(0, COUNT)
            assert ((rounded - exact).abs() <= 0.01 * largest_of_blocks(exact) + 1e-12).all()
            assert not torch.equal(rounded, exact.float())


def test_long_tensors_are_updated_part_by_part(monkeypatch):
    whole, _ = stepped()
    monkeypatch.setattr(eight_bit, "SLICE", 2 * BLOCK)
    parts, _ = stepped()
    assert torch.equal(parts, whole)


def test_a_transposed_tensor_is_updated_as_its_copy():
    torch.manual_seed(0)
    before, gradient = torch.randn(64, 32), torch.randn(64, 32)
    transposed = torch.nn.Parameter(before.t().contiguous().t())
    copy = torch.nn.Parameter(before.clone())
    for weights in (transposed, copy):
        weights.grad = gradient.clone()
        AdamW8bit([{"params": [weights]}], ADAM).step()
    assert torch.equal(transposed, copy)
    assert not torch.equal(copy, before)


@pytest.mark.parametrize("name", NAMES)
def test_moments_are_written_as_they_were_read_in_whatever_parts_they_come(name):
    """The parts of a checkpoint are parameters, of which several are in a block, in any order."""
    weights, optimizer = stepped()
    moment = optimizer.state[weights][name]
    copy = Moment.zeros(COUNT, moment.codebook)
    ends = [0, 3, 200, 256, 300, 301, 1100, 1536, 2500, COUNT]
    parts = [(start, moment.read(start, end - start)) for start, end in pairwise(ends)]
    assert torch.equal(torch.cat([values for _, values in parts]), moment.read(0, COUNT))
    for start, values in reversed(parts):
        copy.write(start, values)
    copy.finish()
    assert torch.equal(copy.read(0, COUNT), moment.read(0, COUNT))
    assert torch.equal(copy.scales, moment.scales)


def test_moments_of_a_run_in_float32_make_no_step_of_another_size():
    """The moments alone make the step of a parameter whose gradient stays away, as of a rare token's embedding."""
    torch.manual_seed(0)
    first = 10 ** (-4 * torch.rand(COUNT))  # magnitudes of 1e-4 to 1 in one block
    weights = torch.nn.Parameter(torch.zeros(COUNT))
    optimizer = AdamW8bit([{"params": [weights]}], {**ADAM, "weight_decay": 0.0})
    weights.grad = torch.zeros(COUNT)
    optimizer.step()
    for name, values in zip(NAMES, (first, first**2), strict=True):
        optimizer.state[weights][name].write(0, values)
        optimizer.state[weights][name].finish()
    optimizer.state[weights]["step"] = 1000
    optimizer.step()
    assert weights.abs().max() < 2 * ADAM["lr"]


def test_a_square_is_0_only_beside_a_moment_of_0(monkeypatch):
    weights, optimizer = stepped(1)
    first, second = (optimizer.state[weights][name] for name in NAMES)
    second.codes[second.codes < 128] = 0  # as a GPU's kernel rounds the smallest ones of a block
    monkeypatch.setattr(eight_bit._kernels(), "optimizer_update_8bit_blockwise", lambda *_, **__: None)
    optimizer.step()
    moments, squares = first.read(0, COUNT), second.read(0, COUNT)
    assert bool((squares[moments != 0] > 0).all())
    assert bool((moments == 0).any())


def test_a_model_learns_as_with_float32_moments():
    def losses(make) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.Linear(64, 256), torch.nn.Tanh())
        model.append(torch.nn.Linear(256, 50))
        optimizer, tokens = make([{"params": list(model.parameters())}]), torch.randint(50, (2, 128))
        values = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = cross_entropy(model(tokens[0]), tokens[1])
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    mine = losses(lambda groups: AdamW8bit(groups, ADAM))
    theirs = losses(lambda groups: torch.optim.AdamW(groups, **ADAM))
    assert theirs[-1] < 0.5 * theirs[0]
    assert mine[::10] == pytest.approx(theirs[::10], rel=0.05)
    assert mine[-1] == pytest.approx(theirs[-1], rel=0.05)


def test_without_bitsandbytes_the_job_ends_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    eight_bit._kernels.cache_clear()
    with pytest.raises(
        InvalidJob, match=r"spec\.optimizer\.moments: is 8bit, but bitsandbytes is not installed"
    ):
        AdamW8bit([], ADAM)
