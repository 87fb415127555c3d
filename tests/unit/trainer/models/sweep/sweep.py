"""Every key of DeepSpeed that a manifest accepts, on two ranks, against the same settings without it.

sweep.py OUT [NAMES]: as each rank; rank 0 writes what came of each case, or of those whose names are given, each on its
line, to OUT, a JSON object by the case's name. `make sweep` records all of them in sweep.json.

A case trains three updates, with a snapshot after the second, and resumes from it in an engine of other weights. Its
`Kind` says how near the statistics and weights must be to those of the base. All must resume bit for bit.
"""

import gc
import json
import logging
import os
import sys
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.unit.trainer.models.on_ranks import ranks
from torch import Tensor, distributed

from rlhf_api.sections.roles import Trainer
from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.models.zero import deepspeed

Kind = Literal["same", "order", "rounded", "low", "scale"]
TOLERANCES: dict[Kind, tuple[float, float]] = {
    "same": (0.0, 0.0),
    "order": (1e-5, 2e-5),
    "rounded": (1e-2, 1e-2),
    "low": (5e-2, 3e-2),
    "scale": (1e-2, 1e-2),
}
"""Relative difference of the gradient norms and largest difference of a weight, of updates whose rate is 0.01: the same
arithmetic; sums in another order; gradients that are sent in another type; master weights or moments in bfloat16 or
float16; another scale of the loss in float16."""

CPU = {"device": "cpu"}
TORCH = {"type": "AdamW", "params": {"torch_adam": True}}


def stage(number: int, dtype: str = "float32", **zero: Any) -> dict[str, Any]:
    """Settings of a ZeRO stage; tensors of the model here are larger than a bucket, and smaller."""
    settings: dict[str, Any] = {"zero_optimization": {"stage": number, "reduce_bucket_size": 5_000, **zero}}
    if dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
    if dtype == "float16":
        settings["fp16"] = {"enabled": True, "loss_scale": 8.0}
    return settings


BASES: dict[str, dict[str, Any]] = {
    "zero0": {"zero_optimization": {"stage": 0}},
    **{f"zero{n}": stage(n) for n in (1, 2, 3)},
    **{f"bf16-zero{n}": stage(n, "bfloat16") for n in (1, 2, 3)},
    **{f"fp16-zero{n}": stage(n, "float16") for n in (1, 2, 3)},
    **{f"zero{n}-offload": stage(n, offload_optimizer=CPU) for n in (1, 2, 3)},
    **{f"bf16-zero{n}-offload": stage(n, "bfloat16", offload_optimizer=CPU) for n in (1, 2, 3)},
    "zero3-offload-all": stage(3, offload_optimizer=CPU, offload_param=CPU),
    "zero1-torch-adam": {**stage(1), "optimizer": {"type": "Adam", "params": {"torch_adam": True}}},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A key with a value, on a base."""

    base: str
    key: str
    value: Any
    kind: Kind = "same"

    @property
    def name(self) -> str:
        return f"{self.base} {self.key}={json.dumps(self.value)}"

    def settings(self) -> dict[str, Any]:
        changed = deepcopy(BASES[self.base])
        *sections, last = self.key.split(".")
        section = changed
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = self.value
        return changed


LIGHT = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
SCALER = {
    "enabled": True,
    "initial_scale_power": 6,
    "loss_scale_window": 1,
    "hysteresis": 1,
    "consecutive_hysteresis": True,
    "min_loss_scale": 2,
}
"""A loss scale that doubles after each update. Not at stage 3: DeepSpeed 0.19.8 divides the norm of that update's
gradient by the new scale there."""


def _zero(bases: str, key: str, value: Any, kind: Kind = "same") -> list[Case]:
    return [Case(base, f"zero_optimization.{key}", value, kind) for base in bases.split()]


CASES: list[Case] = [
    *_zero("zero1 zero2 zero3 bf16-zero2 fp16-zero2", "contiguous_gradients", False, "order"),
    *_zero("zero1 zero2 zero3", "reduce_scatter", False, "order"),
    *_zero("bf16-zero2 bf16-zero3", "reduce_scatter", False, "rounded"),
    *_zero("zero1 zero2 zero3 zero2-offload", "reduce_bucket_size", 64, "order"),
    *_zero("bf16-zero1 bf16-zero2", "reduce_bucket_size", 64, "rounded"),
    *_zero("zero1 zero2", "use_multi_rank_bucket_allreduce", False, "order"),
    *_zero("zero1 zero3", "allgather_partitions", False),
    *_zero("zero1 zero2 bf16-zero1", "allgather_bucket_size", 64),
    *_zero("zero1 zero2 bf16-zero2 zero2-offload", "overlap_comm", True, "order"),
    *_zero("zero3 bf16-zero3", "overlap_comm", False, "order"),
    *_zero("zero1 zero2 zero3", "offload_optimizer", CPU, "order"),
    *_zero("bf16-zero1 bf16-zero2 bf16-zero3", "offload_optimizer", CPU, "rounded"),
    *_zero("zero3 zero3-offload bf16-zero3", "offload_param", CPU, "order"),
    *_zero("zero3 zero3-offload bf16-zero3", "sub_group_size", 1000, "order"),
    *_zero("zero3", "stage3_prefetch_bucket_size", 0),
    *_zero("zero3 bf16-zero3", "stage3_param_persistence_threshold", 0),
    *_zero("zero3", "stage3_model_persistence_threshold", 0),
    *_zero("zero3", "stage3_max_live_parameters", 100),
    *_zero("zero3", "stage3_max_reuse_distance", 0),
    *_zero("zero3", "stage3_gather_16bit_weights_on_model_save", True),
    *_zero("zero3", "stage3_use_all_reduce_for_fetch_params", True),
    *_zero("zero3", "stage3_allgather_sequential", True),
    *_zero("zero1 zero2-offload", "ignore_unused_parameters", False),
    *_zero("zero1 zero2 zero3 bf16-zero1 bf16-zero2 fp16-zero2 zero2-offload", "round_robin_gradients", True),
    *_zero("zero3 bf16-zero3", "zero_hpz_partition_size", 2),
    *_zero("zero3", "memory_efficient_linear", False, "order"),
    *_zero("zero3", "log_trace_cache_warnings", True),
    *_zero("zero3-offload-all", "offload_param.pin_memory", False),
    *_zero("zero2-offload zero3-offload", "offload_optimizer.pin_memory", False),
    Case("bf16-zero1", "bf16.immediate_grad_update", True),
    Case("bf16-zero2", "bf16.check_grad_overflow", False),
    Case("bf16-zero2", "bf16", LIGHT, "low"),
    Case("bf16-zero3", "bf16", LIGHT, "low"),
    Case("fp16-zero1", "fp16.auto_cast", True),
    Case("fp16-zero1", "fp16.loss_scale", 64.0, "scale"),
    *(Case(f"fp16-zero{n}", "fp16", SCALER, "scale") for n in (1, 2)),
    Case("bf16-zero1", "communication_data_type", "bf16"),
    *(Case(f"bf16-zero{n}", "communication_data_type", "fp32", "rounded") for n in (1, 2, 3)),
    *(Case(f"zero{n}", "communication_data_type", "bf16", "rounded") for n in (0, 1, 2, 3)),
    Case("fp16-zero2", "communication_data_type", "fp16"),
    Case("zero1", "zero_allow_untested_optimizer", True),
    Case("zero2-offload", "zero_force_ds_cpu_optimizer", False),
    Case("zero1", "wall_clock_breakdown", True),
    Case("zero1", "comms_logger", {"enabled": True, "prof_all": True}),
    *(Case(base, "optimizer", TORCH, "order") for base in ("zero1", "zero3", "bf16-zero2")),
    Case("zero1-torch-adam", "optimizer.params.betas", [0.9, 0.99]),
    Case("zero1-torch-adam", "optimizer.params.eps", 1e-4),
    Case("zero1-torch-adam", "optimizer.params.weight_decay", 0.1),
]  # fmt: skip
NOT_RUN = {
    **dict.fromkeys(
        (f"zero_optimization.zero_quantized_{name}" for name in ("weights", "nontrainable_weights", "gradients")),
        "DeepSpeed has its quantizer for GPUs alone",
    ),
    **dict.fromkeys(
        [
            *(
                f"zero_optimization.offload_param.{key}"
                for key in ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu")
            ),
            *(
                f"zero_optimization.offload_optimizer.{key}"
                for key in ("nvme_path", "buffer_count", "pipeline_read", "pipeline_write", "fast_init")
            ),
        ],
        "a disk is read and written by libaio, which is not installed here",
    ),
    "zero_optimization.stage3_module_granularity_threshold": "DeepSpeed 0.19.8 fails with it on CPUs (record_stream)",
    **dict.fromkeys(
        [
            *(f"zero_optimization.offload_optimizer.{key}" for key in ("ratio", "super_offload", "cpuadam_cores_perc")),
            *(f"optimizer.params.{key}" for key in ("adam_w_mode", "bias_correction", "fp32_optimizer_states")),
            "fp16.fp16_master_weights_and_grads",
        ],
        "of DeepSpeed's own Adam, which it compiles when a trainer starts",
    ),
    **dict.fromkeys(("activation_checkpointing", "steps_per_print", "optimizer.params.lr"), "refused"),
}  # fmt: skip
"""Keys without a case, and why."""


@dataclass(frozen=True)
class Trial:
    """Statistics of each update, the weights after the last one, the resume, and bytes that rank 0 keeps."""

    statistics: list[dict[str, float]]
    weights: dict[str, Tensor]
    resumed: bool


@dataclass(frozen=True)
class Outcome:
    """Differences from the base: relative of the gradient norm, absolute of a weight."""

    kind: str
    norm_difference: float
    weight_difference: float
    resumed: bool
    failed: str = ""

    @property
    def passed(self) -> bool:
        norm, weight = TOLERANCES[self.kind]  # type: ignore[index]
        return (
            not self.failed
            and self.resumed
            and self.norm_difference <= norm
            and self.weight_difference <= weight
        )


def engine(settings: dict[str, Any], seed: int) -> TrainedModel:
    model = ranks.make("untied", seed)
    given = deepcopy(settings)
    return TrainedModel(model, ranks.ADAM, Trainer(), deepspeed=given, micro_batch_tokens=40, pad_token_id=0)


def trial(settings: dict[str, Any]) -> Trial:
    first = engine(settings, 0)
    statistics = [ranks.step(first, "untied", update) for update in range(2)]
    state = ranks.copied(training_state(first))
    statistics.append(ranks.step(first, "untied", 2))
    weights, final = ranks.copied(first.named_tensors()), ranks.copied(training_state(first))
    second = engine(settings, 1)
    load_training_state(second, state.__getitem__)
    back = ranks.copied(training_state(second))
    again = ranks.step(second, "untied", 2)
    resumed = ranks.same(back, state) and again == statistics[-1]
    resumed &= ranks.same(ranks.copied(training_state(second)), final)
    resumed &= ranks.same(ranks.copied(second.named_tensors()), weights)
    return Trial(statistics, weights, resumed)


def outcome(case: Case, base: Trial) -> Outcome:
    try:
        result = trial(case.settings())
    except Exception as error:
        return Outcome(case.kind, 0.0, 0.0, False, f"{type(error).__name__}: {error}"[:300])
    pairs = zip(result.statistics, base.statistics, strict=True)
    norm = max(abs(mine["grad_norm"] / theirs["grad_norm"] - 1) for mine, theirs in pairs)
    weights = [
        (result.weights[name].float() - tensor.float()).abs().max() for name, tensor in base.weights.items()
    ]
    return Outcome(case.kind, norm, max(map(float, weights), default=0.0), result.resumed)


def main(out: Path, names: str = "") -> None:
    logging.disable(logging.WARNING)
    deepspeed.get_accelerator().is_fp16_supported = lambda: True  # torch has all of it on a CPU
    distributed.init_process_group("gloo")
    gc.freeze()
    bases, outcomes = dict[str, Trial](), dict[str, Any]()
    selected = [case for case in CASES if not names or case.name in names.splitlines()]
    for case in selected:
        if case.base not in bases:
            bases[case.base] = trial(BASES[case.base])
        outcomes[case.name] = asdict(outcome(case, bases[case.base]))
    if distributed.get_rank() == 0:
        record = {"deepspeed": deepspeed.__version__, "cases": outcomes}
        out.write_text(json.dumps(record, indent=1) + "\n")
    distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
