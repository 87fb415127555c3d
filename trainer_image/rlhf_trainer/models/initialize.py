"""Initialises a model and its optimizer under DeepSpeed."""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn import Module, Parameter

from .zero import deepspeed


def initialize(model: Module, settings: dict[str, Any], adam: Mapping[str, Any]) -> Any:
    """DeepSpeed's engine for `model`, on every rank's GPU, with the configuration of `deepspeed_settings`; torch's
    AdamW with the arguments `adam`, unless the configuration names an optimizer."""
    groups = _parameter_groups(model, settings.get("optimizer", {}).get("params", adam)["weight_decay"])
    away = settings["zero_optimization"].get("offload_optimizer", {}).get("device", "none") != "none"
    fused = not (
        away and torch.cuda.is_available()
    )  # offloaded, its tensors are on CPUs and the model on a GPU
    optimizer = None if "optimizer" in settings else torch.optim.AdamW(groups, **adam, fused=fused)
    with contextlib.redirect_stdout(sys.stderr):
        if settings["zero_optimization"].get("stage") == 3:
            _divide(model, settings)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            model_parameters=None if optimizer else groups,
            config=settings,
            dist_init_required=False,
        )
    if distributed.get_world_size() == 1 and not engine.zero_optimization():
        engine.enable_backward_allreduce = False  # it would copy the whole gradient to a buffer and back
    return engine


def _parameter_groups(model: Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: weight decay for matrices, none for vectors (biases, norms)."""
    trained: list[Parameter] = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _divide(model: Module, settings: dict[str, Any]) -> None:
    """Partitions the model over the ranks, tensor by tensor; `deepspeed.initialize` would move the whole model to the
    GPU first.
    """
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if settings.get(kind, {}).get("enabled"):
            for parameter in model.parameters():  # as deepspeed.initialize does for whole models
                parameter.data = parameter.data.to(dtype)
    deepspeed.zero.Init(module=model, config_dict_or_path=settings)
    device = deepspeed.get_accelerator().current_device_name()
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)
