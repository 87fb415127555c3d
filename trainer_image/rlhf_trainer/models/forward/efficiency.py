"""Faster and smaller layers for training: fused kernels and activation checkpointing."""

import importlib.util
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.roles import GradientCheckpointing, Kernels

log = logging.getLogger(__name__)


def fuse(model: PreTrainedModel, kernels: Kernels) -> None:
    """Replaces the model's norms, rotary embedding and SwiGLU by Liger's kernels, on GPUs (Hsu et al. 2024,
    arXiv:2410.10989). A mixture's experts stay Transformers' own grouped products: Liger's are slower (0.27 s an update
    for 0.16 s on an H200, 32 experts of 2,048 x 768), and tune themselves for two minutes at the start.

    `auto` leaves the model's layers unchanged if Liger is missing or does not support its class. Raises InvalidJob for
    `liger` if it is unavailable.
    """
    if kernels == "torch" or (kernels == "auto" and not torch.cuda.is_available()):
        return
    kind, missing = model.config.model_type, "liger-kernel is not installed"
    if importlib.util.find_spec("liger_kernel") is not None:
        from liger_kernel.transformers.monkey_patch import (
            MODEL_TYPE_TO_APPLY_LIGER_FN,
            _apply_liger_kernel_to_instance,
        )

        if kind in MODEL_TYPE_TO_APPLY_LIGER_FN:
            experts = {"swiglu": False} if _has_experts(model) else {}
            try:
                _apply_liger_kernel_to_instance(
                    model=model, cross_entropy=False, fused_linear_cross_entropy=False, **experts
                )
                return
            except TypeError as error:  # of some types it takes the language model alone, not its critic
                missing = f"Liger has none for {type(model).__name__}: {error}"
        else:
            missing = f"Liger has none for {kind!r}"
    if kernels == "liger":
        raise InvalidJob([Problem("spec.trainer.kernels", f"is liger, but {missing}; leave it to auto")])
    log.info("no fused kernels: %s", missing)


def _has_experts(model: nn.Module) -> bool:
    """True for a mixture whose experts are fused: one parameter holds the matrices of all, [experts, out, in]."""
    return any(parameter.ndim == 3 for parameter in model.parameters())


def recompute(model: nn.Module, checkpointing: GradientCheckpointing) -> None:
    """Activation checkpointing: recomputes a layer's activations in the backward pass (Chen et al. 2016,
    arXiv:1604.06174): of every layer with `full`, of every second one with `selective`.

    Raises InvalidJob for a model whose layers cannot be identified.
    """
    if checkpointing == "none":
        return
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        message = f"{type(model).__name__} does not support gradient checkpointing; use none"
        raise InvalidJob([Problem("spec.trainer.gradientCheckpointing", message)])
    # Whole layers, not operators: what decides for each operator costs the host several times a layer's own time.
    for layer in layers if checkpointing == "full" else layers[::2]:
        # Transformers' own switch requires training mode, and so dropout.
        layer.forward = partial(_again, layer.forward)


def _again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
