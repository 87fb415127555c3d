"""Rules of `spec.optimizer.matrices`: where Muon finds whole matrices and the whole gradient's norm."""

from collections.abc import Iterator

from ...errors.problem import Problem
from ...sections.deepspeed import SECTIONS
from ...spec import Spec
from .idle import Setup


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of models that Muon cannot train, each once."""
    if spec.optimizer.matrices != "muon":
        return
    where, got = "spec.optimizer.matrices", "use adamw; got 'muon'"
    for model in spec.graph.trained:
        field, config = model.field, spec.trained_deepspeed(model.field)
        setup = Setup.of(config, dtype := spec.trained_dtype(field))
        section = SECTIONS[field == "critic" and spec.trainer.critic_deepspeed is not None]
        if spec.model.adapter(field) is not None:
            message = f"orthogonalises the update of a weight, and the adapter of the {field} trains two factors of it"
            yield Problem(where, f"{message}; remove spec.model.lora.{field}, or {got}")
        elif config.optimizer is not None:
            message = f"is another optimizer than {section.where('optimizer')}, which trains the {field}"
            yield Problem(where, f"{message}; remove that, or {got}")
        elif setup.offloads:
            message = (
                f"is not computed on a CPU; remove {section.where('zero_optimization.offload_optimizer')}"
            )
            yield Problem(where, f"{message}, or {got}")
        elif not setup.sums_in_float32 and (dtype, setup.stage) != ("float32", 0):
            message = (
                "needs bfloat16 at ZeRO stage 1 or float32 at stage 0: elsewhere DeepSpeed clips Muon's updates in "
                f"place of the gradient; the {field} has {dtype} at stage {setup.stage}"
            )
            yield Problem(where, f"{message}; change {section.where('zero_optimization.stage')}, or {got}")
