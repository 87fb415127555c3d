"""DeepSpeed's Muon for the matrices of hidden layers, beside torch's AdamW for all else."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import Module, Parameter

from rlhf_api.errors.problem import InvalidJob, Problem

WHERE = "spec.optimizer.matrices"
FACTOR = "rate_factor"
"""Key of a parameter group: what the learning rate is multiplied with."""
MOMENTUM = 0.95
"""That of Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", and of torch.optim.Muon."""
HEADS = ("score", "classifier")


def make_muon(model: Module, adam: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Muon (Liu et al. 2025, "Muon is Scalable for LLM Training", arXiv:2502.16982, algorithm 1 and equation 4): a
    momentum's update, orthogonalised by five Newton-Schulz steps, times 0.2 sqrt(max(out, in)). That has the root mean
    square of an update of AdamW, so both have one learning rate and weight decay, those of `adam`.

    Raises InvalidJob for a mixture, whose experts are tensors of three dimensions.
    """
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam  # a second, for such a job alone

    trained = [p for p in model.parameters() if p.requires_grad]
    hidden = {id(p) for p in _hidden_matrices(model)}
    if any(p.ndim == 3 for p in trained):
        message = "Muon is of matrices, and the experts of this mixture are tensors of three dimensions"
        raise InvalidJob([Problem(WHERE, f"{message}; use adamw; got 'muon'")])
    for parameter in trained:
        parameter.use_muon = id(parameter) in hidden  # type: ignore[attr-defined]  # DeepSpeed reads it
    decay = adam["weight_decay"]
    shapes = dict.fromkeys(p.shape for p in trained if id(p) in hidden)
    groups = [
        _group([p for p in trained if id(p) in hidden and p.shape == shape], shape, decay) for shape in shapes
    ]
    rest = [p for p in trained if id(p) not in hidden]
    for matrices, of_kind in ((True, decay), (False, 0.0)):
        chosen = [p for p in rest if (p.ndim >= 2) == matrices]
        groups.append({**adam, "params": chosen, "use_muon": False, "weight_decay": of_kind})
    if not rest:
        message = "the steps are counted by AdamW's state, and no trained parameter is left for it"
        raise InvalidJob([Problem(WHERE, f"{message}; freeze fewer parts; got 'muon'")])
    filled = [group for group in groups if group["params"]]
    muon: torch.optim.Optimizer = MuonWithAuxAdam(filled, torch.optim.AdamW, {"fused": True})
    return muon


def has_momentum(parameter: Parameter) -> bool:
    """True for a parameter of Muon, whose state is one momentum."""
    return getattr(parameter, "use_muon", False)


def check_engine(engine: Any) -> None:
    """Raises InvalidJob for an engine whose optimizer would clip Muon's updates in place of the gradient."""
    if engine.zero_optimization_stage() and type(engine.optimizer).__name__ != "BF16_Optimizer":
        message = "Muon needs DeepSpeed's BF16_Optimizer, which this configuration of DeepSpeed replaces"
        raise InvalidJob([Problem(WHERE, f"{message} by its {type(engine.optimizer).__name__}; got 'muon'")])


def step_eagerly(engine: Any) -> None:
    """Keeps DeepSpeed from compiling Muon's update, for each shape anew and by a compiler that a machine may lack."""
    engine.step = torch.compiler.set_stance("force_eager")(engine.step)


def _group(parameters: list[Parameter], shape: torch.Size, decay: float) -> dict[str, Any]:
    """Matrices of one shape. DeepSpeed multiplies an update by sqrt(max(1, out / in)), and the decay by the rate."""
    out, inputs = shape
    factor = 0.2 * math.sqrt(max(out, inputs)) / math.sqrt(max(1.0, out / inputs))
    return {
        "params": parameters,
        "use_muon": True,
        "momentum": MOMENTUM,
        "ns_method": "standard",
        "weight_decay": decay / factor,
        FACTOR: factor,
    }


def _hidden_matrices(model: Module) -> list[Parameter]:
    """Trained matrices, except embeddings and heads."""
    heads = [getattr(model, name, None) for name in HEADS]
    output = getattr(model, "get_output_embeddings", None)
    if output is not None:
        heads.append(output())
    ends = [m for m in model.modules() if isinstance(m, nn.Embedding)] + [m for m in heads if m is not None]
    outside = {id(p) for module in ends for p in module.parameters()}
    return [p for p in model.parameters() if p.requires_grad and p.ndim == 2 and id(p) not in outside]
