"""Digest of the weights of a model that no update changes, by which a resumed run knows them again."""

import hashlib

import torch
from torch import nn

from ..process import progress

BASE = "base_layer."
"""Part of the names of weights below an adapter."""


def frozen_digest(model: nn.Module) -> str:
    """SHA-256 of the names and bytes of all frozen parameters, the same whichever layers have an adapter."""
    digest = hashlib.sha256()
    for name, parameter in progress.each(model.named_parameters()):
        if not parameter.requires_grad:
            plain = name.replace(BASE, "")
            digest.update(f"{plain} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
