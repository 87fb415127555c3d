"""With `trainer.deterministic` the gradients of attention over many blocks are the same bits each time."""

import pytest
import torch

from rlhf_api.sections.roles import Trainer
from rlhf_trainer.checkpoint.rng import choose_kernels
from rlhf_trainer.local_generation.processors import draw
from rlhf_trainer.models.forward.attention import packed_attention

LENGTH = 4096
STARTS = [0, 1000, LENGTH]


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    choose_kernels(Trainer(deterministic=True))
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    ("dtype", "packed"), [(torch.bfloat16, True), (torch.float32, True), (torch.float32, False)]
)
def test_gradients_of_attention_are_the_same_each_time(dtype: torch.dtype, packed: bool):
    torch.manual_seed(0)
    inputs = [torch.randn(1, 8, LENGTH, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
    mask = torch.tensor(STARTS, dtype=torch.int32, device="cuda").view(1, 1, 1, -1) if packed else None
    first = None
    for _ in range(20):
        output, _ = packed_attention(torch.nn.Module(), *inputs, mask)
        gradients = torch.autograd.grad(output.float().square().sum(), inputs)
        first = first or gradients
        assert all(map(torch.equal, gradients, first))


@pytest.mark.usefixtures("deterministic")
def test_tokens_are_drawn_with_deterministic_kernels():
    logprobs = torch.randn(4, 151_936, device="cuda").log_softmax(-1)
    torch.manual_seed(0)
    drawn = draw(logprobs)
    torch.manual_seed(0)
    assert torch.equal(draw(logprobs), drawn)
