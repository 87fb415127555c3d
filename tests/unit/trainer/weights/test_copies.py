"""Copies that are watched once and repeated: only where loading does nothing else."""

import json
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from rlhf_trainer.engines.vllm.weights import copy_plan
from rlhf_trainer.engines.vllm.weights.copy_plan import Copies, Named


class Fused(nn.Module):
    """Holds two weights in one parameter, as vLLM does, and one in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.ones(7, 4))  # the last rows are padding
        self.scale = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
        self.register_buffer("table", torch.zeros(4))

    @torch.no_grad()
    def load(self, weights: Named) -> set[str]:
        given = dict(weights)
        self.both.data[:2].copy_(given["up"])
        self.both.data.narrow(0, 2, 3).copy_(given["down"].t())
        self.both.data[5:].fill_(0)
        self.scale.data.copy_(given["scale"])
        return {"both", "scale"}


def weights(seed: int) -> list[tuple[str, Tensor]]:
    torch.manual_seed(seed)
    whole = torch.randn(64)
    return [("up", whole[3:11].view(2, 4)), ("down", whole[16:28].view(4, 3)), ("scale", whole[40:44])]


@pytest.mark.parametrize("batch", [copy_plan.BATCH, 1], ids=["all at once", "one by one"])
def test_repeated_copies_do_what_loading_does(batch, monkeypatch):
    monkeypatch.setattr(copy_plan, "BATCH", batch)
    model, other = Fused(), Fused()
    names, copies = Copies.watch(model, weights(1), model.load)
    assert names == {"both", "scale"}
    assert copies is not None
    assert copies.whole
    assert copies.fit(model, weights(2))
    copies.repeat(weights(2))
    other.load(weights(2))
    assert all(
        torch.equal(mine, its) for mine, its in zip(model.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "more",
    [
        lambda model, _given: model.both.data[0].fill_(1.0),
        lambda model, given: model.both.data[5:].copy_(given["up"]),
        lambda model, _given: model.both.data.add_(1.0),
        lambda model, given: model.both.data[:2].copy_(given["up"] * 2),
        lambda model, given: model.both.data[:2].copy_(given["up"][0]),  # spread over both rows
        lambda model, _given: model.table.copy_(model.both[0]),
    ],
)
def test_loading_that_does_more_than_to_copy_is_not_repeated(more):
    model = Fused()

    @torch.no_grad()
    def load(given: Named) -> set[str]:
        names = model.load(given)
        more(model, dict(given))
        return names

    names, copies = Copies.watch(model, weights(1), load)
    assert (names, copies) == ({"both", "scale"}, None)


def test_a_weight_that_is_not_loaded_whole_is_compared_and_not_repeated():
    """With tensor parallelism each worker loads some of its rows."""
    model, given = Fused(), [*weights(1), ("other", torch.ones(3))]
    copies = Copies.watch(model, given, model.load)[1]
    assert copies is not None
    assert copies.fit(model, given)
    assert not copies.whole
    assert [name for name, _, _ in copies.pairs(given)] == ["up", "down", "scale"]
    assert all(torch.equal(into, part.to(into.dtype)) for _, into, part in copies.pairs(given))
    assert Copies.watch(model, weights(1), lambda given: model.load(given) and None) == (None, None)


def test_copies_fit_the_same_weights_in_the_same_places_only():
    model = Fused()
    copies = Copies.watch(model, weights(1), model.load)[1]
    assert copies is not None
    assert not copies.fit(model, weights(1)[:2])
    assert not copies.fit(model, [(name, weight.double()) for name, weight in weights(1)])
    assert not copies.fit(model, [(name, weight.flatten()) for name, weight in weights(1)])
    model.both.data = model.both.data.clone()
    assert not copies.fit(model, weights(1))


@pytest.mark.slow
def test_models_of_vllm_get_by_repetition_what_their_own_code_loads(folder, forked_programs):  # noqa: ARG001
    models = [str(folder / "untied-1"), str(folder / "tied-1")]
    command = [sys.executable, "-m", "tests.unit.trainer.weights.vllm_copies", *models]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == len(models)
    for model in reports:
        assert model["repeats"]
        assert model["same"] == model["parameters"] > 0
        assert model["proven"]
        assert model["derived again"] == 2, "what attention derives from its weights, after each of two loads"
        assert model["compared"] >= model["weights"], "each of them, fused ones part by part"
        assert "is not what arrived as weight version 2" in model["of the base"]
