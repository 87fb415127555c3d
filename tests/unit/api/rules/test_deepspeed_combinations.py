"""DeepSpeed keys that need each other are refused by name, and those without effect are named with the reason."""

import pytest
from tests.unit.api.manifests import job, refusals

from rlhf_api.estimate.zero import Zero
from rlhf_api.rules.idle import list_idle_fields
from rlhf_operator.commands.plan_table import plan_lines

AT = "spec.trainer.deepspeed"
BF16 = f"{AT}.bf16={{enabled: true, bf16_master_weights_and_grads: true}}"
BOTH = f"{AT}.bf16={{enabled: true, bf16_master_weights_and_grads: true, bf16_optimizer_states: true}}"
OWN = f"{AT}.optimizer={{type: AdamW}}"
TWO = "spec.trainer.processesPerReplica=2"
HPZ = "zero_optimization={stage: 3, zero_hpz_partition_size: 2}"


def zero(stage: int, offload: str = "") -> str:
    away = f", offload_optimizer: {{device: cpu{offload}}}" if offload else ""
    return f"{AT}.zero_optimization={{stage: {stage}{away}}}"


ON_CPU = ", pin_memory: false"
MASTERS = f"{AT}.bf16.bf16_master_weights_and_grads"
AWAY = f"{AT}.zero_optimization.offload_optimizer"
REFUSED = [
    ((zero(1), BOTH), MASTERS, "has no effect at stage 1, whose optimizer keeps float32"),
    ((zero(1), BF16), MASTERS, "has no effect at stage 1"),
    ((zero(2), BF16), MASTERS, "needs offload_optimizer and DeepSpeed's own Adam"),
    ((zero(2), BF16), MASTERS, "or set bf16_optimizer_states: true too; got true"),
    ((zero(2, ON_CPU), BOTH), MASTERS, "needs offload_optimizer and DeepSpeed's own Adam"),
    (
        (zero(2), f"{AT}.bf16={{enabled: true, bf16_optimizer_states: true}}"),
        *(f"{AT}.bf16.bf16_optimizer_states", "needs bf16_master_weights_and_grads: true"),
    ),
    (
        (
            *(zero(2, ON_CPU), BOTH),
            f"{AT}.optimizer={{type: AdamW, params: {{fp32_optimizer_states: true}}}}",
        ),
        *(f"{AT}.optimizer.params.fp32_optimizer_states", "contradicts bf16.bf16_optimizer_states"),
    ),
    (
        (
            "spec.trainer={dtype: float16, deepspeed: {fp16: {enabled: true, fp16_master_weights_and_grads: true}}}",
        ),
        *(f"{AT}.fp16.fp16_master_weights_and_grads", "needs offload_optimizer and DeepSpeed's own Adam"),
    ),
    ((zero(2, ", ratio: 0.5"), OWN), f"{AWAY}.ratio", "needs zero_optimization.stage 3"),
    ((zero(3, ", ratio: 0.5"),), f"{AWAY}.ratio", "DeepSpeed's own Adam"),
    ((zero(2, ", super_offload: true"), OWN), f"{AWAY}.super_offload", "needs zero_optimization.stage 3"),
    ((zero(3, ", cpuadam_cores_perc: 0.5"),), f"{AWAY}.cpuadam_cores_perc", "no effect without super_offload"),
    (
        (zero(2, ON_CPU), f"{AT}.zero_force_ds_cpu_optimizer=true"),
        *(f"{AT}.zero_force_ds_cpu_optimizer", "refuses torch's AdamW, which the job has"),
    ),
    (
        ("spec.trainer.processesPerReplica=3", f"{AT}.{HPZ}"),
        *(f"{AT}.zero_optimization.zero_hpz_partition_size", "must divide the 3 ranks"),
    ),
    (
        (
            *("spec.trainer.processesPerReplica=4", f"{AT}.{HPZ}"),
            "spec.trainer.criticDeepspeed={zero_optimization: {stage: 3, zero_hpz_partition_size: 4}}",
        ),
        *("spec.trainer.criticDeepspeed.zero_optimization.zero_hpz_partition_size", "make them equal; got [2, 4]"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "where", "says"), REFUSED)
def test_keys_that_need_others_are_refused(overrides, where, says) -> None:
    assert says in refusals(*overrides)[where]


@pytest.mark.parametrize(
    "overrides",
    [(zero(2), BOTH), (zero(3), BOTH), (zero(2, ON_CPU), BOTH, OWN), (zero(2, ON_CPU), BF16, OWN)],
)
def test_the_plan_counts_low_precision_only_where_deepspeed_has_it(overrides) -> None:
    planned = Zero.of(job(*overrides).spec, "policy")
    assert (planned.master, planned.moments) == (2, 4 if BOTH in overrides else 8)


def test_models_of_one_trainer_share_secondary_partitions_of_one_size() -> None:
    job(TWO, f"{AT}.{HPZ}")


IDLE = [
    (zero(2).replace("2}", "2, round_robin_gradients: true}"), "zero_optimization.round_robin_gradients"),
    (zero(3).replace("3}", "3, round_robin_gradients: true}"), "zero_optimization.round_robin_gradients"),
    (zero(2).replace("2}", "2, allgather_partitions: false}"), "zero_optimization.allgather_partitions"),
    (
        zero(3).replace("3}", "3, stage3_gather_16bit_weights_on_model_save: true}"),
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
    (zero(1).replace("1}", "1, overlap_comm: true}"), "zero_optimization.overlap_comm"),
    (zero(3).replace("3}", "3, allgather_bucket_size: 5}"), "zero_optimization.allgather_bucket_size"),
    (f"{AT}.zero_allow_untested_optimizer=true", "zero_allow_untested_optimizer"),
    (f"{AT}.bf16={{enabled: true, check_grad_overflow: false}}", "bf16.check_grad_overflow"),
    (zero(2, ", buffer_count: 9"), "zero_optimization.offload_optimizer.buffer_count"),
]


@pytest.mark.parametrize(("override", "key"), IDLE)
def test_a_key_without_effect_is_named(override, key) -> None:
    spec = job(override).spec
    (line,) = list_idle_fields(spec)
    assert line.startswith(f"no effect: {AT}.{key}; ")
    assert line in plan_lines(spec)


def test_what_is_deepspeeds_default_is_not_named() -> None:
    defaults = (
        "allgather_partitions: true, overlap_comm: true, reduce_scatter: true, contiguous_gradients: true"
    )
    given = f"{AT}.zero_optimization={{stage: 2, {defaults}, round_robin_gradients: false}}"
    assert list_idle_fields(job(given).spec) == []
