"""Weights of a model that no update changes: which they are, and a digest by which a resumed run knows them again."""

import hashlib
import logging
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from rlhf_api.errors.problem import InvalidJob, Problem, show
from rlhf_api.sections.model import is_of_part

from ..process import progress

log = logging.getLogger(__name__)

BASE = "base_layer."
"""Part of the names of weights below an adapter."""
WHERE = "spec.model.freeze"


def freeze_parts(model: nn.Module, parts: Sequence[str]) -> None:
    """Freezes the parameters of these parts; a tensor that is tied has several names, and each of them freezes it.

    Raises InvalidJob for a part that has no parameter which is trained, and where none would be left.
    """
    names = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    problems = [_unknown(names, i, part) for i, part in enumerate(parts) if not _of_part(names, part)]
    if problems:
        raise InvalidJob(problems)
    named = {name for part in parts for name in _of_part(names, part)}
    for name in named:
        names[name].requires_grad_(False)
    tied = [name for name, p in names.items() if not p.requires_grad and name not in named]
    if tied:
        log.warning("%s is frozen too: it is tied to what %s names", ", ".join(tied), WHERE)
    if parts and not any(parameter.requires_grad for parameter in names.values()):
        message = "freezes all parameters of the model, and none is left to train; name fewer parts"
        raise InvalidJob([Problem(WHERE, f"{message}; got {show(list(parts))}")])


def _of_part(names: Iterable[str], part: str) -> list[str]:
    return [name for name in names if is_of_part(name, part)]


def _unknown(names: Iterable[str], number: int, part: str) -> Problem:
    known = sorted({piece for name in names for piece in name.split(".") if not piece.isdecimal()})
    message = f"no parameter that would be trained has this in its name; there are {', '.join(known)}"
    return Problem(f"{WHERE}[{number}]", f"{message}; got {part!r}")


def frozen_digest(model: nn.Module) -> str:
    """SHA-256 of the names and bytes of all frozen parameters, the same whichever layers have an adapter."""
    digest = hashlib.sha256()
    for name, parameter in progress.each(model.named_parameters()):
        if not parameter.requires_grad:
            plain = name.replace(BASE, "")
            digest.update(f"{plain} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
