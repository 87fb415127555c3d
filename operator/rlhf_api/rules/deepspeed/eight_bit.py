"""Rules of `spec.optimizer.moments`: the trainer's own AdamW has 8 bits, on GPUs."""

from collections.abc import Iterator

from ...errors.problem import Problem
from ...spec import Spec
from .idle import Setup
from .keys import given_sections


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of other optimizers and other places of moments, which have no 8 bits."""
    if spec.optimizer.moments != "8bit":
        return
    where, got = "spec.optimizer.moments", "use float32; got '8bit'"
    if spec.optimizer.matrices == "muon":
        message = "is of AdamW, and Muon keeps a momentum of its own; set spec.optimizer.matrices: adamw"
        yield Problem(where, f"{message}, or {got}")
    for section, config in given_sections(spec):
        setup = Setup.of(config, spec.trained_dtype(section.model))
        if config.optimizer is not None:
            message = f"is of the trainer's own AdamW; remove {section.where('optimizer')}"
        elif setup.offloads:
            message = f"is kept on GPUs; remove {section.where('zero_optimization.offload_optimizer')}"
        elif config.bf16 is not None and config.bf16.bf16_optimizer_states:
            message = f"contradicts {section.where('bf16.bf16_optimizer_states')}; remove that"
        else:
            continue
        yield Problem(where, f"{message}, or {got}")
