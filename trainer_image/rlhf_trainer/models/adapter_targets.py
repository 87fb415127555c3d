"""Targets of an adapter: linear layers of a model, and weights of its experts where they are named."""

import logging
from collections.abc import Iterable, Sequence

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlhf_api.sections.lora import is_named, shortest_target

from .peft_parts import LoraConfig, convert_peft_config_for_transformers

log = logging.getLogger(__name__)

HEADS = ("score", "classifier")
"""Attributes that hold the head of a reward model or critic."""


def choose_targets(model: PreTrainedModel, requested: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Suffixes of the names of linear layers, except the head, and of experts' weights, none unless requested.

    Raises ValueError for a name that is neither.
    """
    heads = {id(model.get_output_embeddings()), *(id(getattr(model, name, None)) for name in HEADS)}
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and id(module) not in heads
    ]
    ends, experts = sorted({shortest_target(name) for name in linear}), _experts(model)
    if requested is None:
        return ends, []
    chosen = [
        [target for target in sorted(set(requested)) if any(is_named(name, target) for name in names)]
        for names in (linear, experts)
    ]
    for target in requested:
        if target not in chosen[0] + chosen[1]:
            known = ", ".join(ends) or "none"
            fused = f"; of its experts {', '.join(_expert_ends(experts))}" if experts else ""
            raise ValueError(
                f"no linear layer of the model is named {target!r}; it has {known}, beside its head{fused}"
            )
    return chosen[0], chosen[1]


def find_misread_targets(model: PreTrainedModel, targets: Iterable[str]) -> set[str]:
    """Those names of linear layers that PEFT reads as names of a mixture's experts, which some types of model had under
    Transformers 4: `gate_proj`, `up_proj` and `down_proj` of dense layers and shared experts."""
    return {target for target in targets if _is_misread(model, target)}


def _is_misread(model: PreTrainedModel, target: str) -> bool:
    config = LoraConfig(target_modules=[target])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # half of a fused weight
        return True
    return target not in (config.target_modules or ())


def _experts(model: PreTrainedModel) -> dict[str, int]:
    """Weights of a mixture's experts, which Transformers fuses into tensors [experts, out, in], and their sizes."""
    return {n: p.numel() for n, p in model.named_parameters() if p.ndim == 3 and ".experts." in n}


def _expert_ends(experts: Iterable[str]) -> list[str]:
    """Names for `targetModules`, such as `experts.down_proj`."""
    return sorted({shortest_target(name) for name in experts})


def report_misread(model: PreTrainedModel, misread: Iterable[str]) -> None:
    """Logs a warning if PEFT will refuse the adapter alone: what it takes for experts can have no magnitudes there."""
    if names := ", ".join(sorted(misread)):
        log.warning(
            "PEFT takes %s of %s for its experts and refuses their magnitudes: the merged model has all that is "
            "trained, and the adapter beside it will not load",
            names,
            type(model).__name__,
        )


def report_experts(model: PreTrainedModel) -> None:
    """Logs a warning if experts stay without an adapter."""
    if experts := _experts(model):
        log.warning(
            "the experts of %s, %.0f%% of its parameters, have no adapter and stay as they are; targetModules may name "
            "them: %s",
            type(model).__name__,
            100 * sum(experts.values()) / sum(p.numel() for p in model.parameters()),
            ", ".join(_expert_ends(experts)),
        )
