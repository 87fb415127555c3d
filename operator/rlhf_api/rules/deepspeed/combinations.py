"""Rules of DeepSpeed keys that need each other: combinations that it would refuse, or forget, when a trainer starts."""

from collections.abc import Iterator

from ...errors.problem import Problem, show
from ...sections.deepspeed import SECTIONS, DeepSpeedConfig, Section
from ...spec import Spec
from .idle import Setup
from .keys import given_sections

_OWN = "offload_optimizer and DeepSpeed's own Adam (optimizer: {type: AdamW}, without torch_adam)"


def low_precision_masters(spec: Spec) -> Iterator[Problem]:
    """Problems of master weights and moments in the compute dtype, which not every optimizer of DeepSpeed has."""
    for section, config, setup in _setups(spec):
        own = setup.offloads and setup.compiled_adam
        bf16, fp16 = config.bf16, config.fp16
        masters = bf16 is not None and bool(bf16.bf16_master_weights_and_grads)
        states = bf16 is not None and bool(bf16.bf16_optimizer_states)
        where = section.where("bf16.bf16_master_weights_and_grads")
        if states and not masters:
            message = "needs bf16_master_weights_and_grads: true; got it without"
            yield Problem(section.where("bf16.bf16_optimizer_states"), message)
        elif masters and setup.sums_in_float32:
            message = "has no effect at stage 1, whose optimizer keeps float32 master weights and moments"
            yield Problem(where, f"{message}; set zero_optimization.stage 2 or 3, or remove it; got true")
        elif masters and not own and (setup.offloads or not states):
            other = "" if setup.offloads else "; or set bf16_optimizer_states: true too"
            yield Problem(where, f"needs {_OWN}{other}; got true")
        params = config.optimizer.params if config.optimizer is not None else None
        if states and params is not None and params.fp32_optimizer_states:
            message = "contradicts bf16.bf16_optimizer_states: true; remove one; got true"
            yield Problem(section.where("optimizer.params.fp32_optimizer_states"), message)
        if fp16 is not None and fp16.fp16_master_weights_and_grads and not own:
            yield Problem(section.where("fp16.fp16_master_weights_and_grads"), f"needs {_OWN}; got true")


def offloading(spec: Spec) -> Iterator[Problem]:
    """Problems of a partial offload, and of an insistence on DeepSpeed's Adam where the job has torch's."""
    for section, config, setup in _setups(spec):
        away = config.zero_optimization.offload_optimizer
        own = setup.offloads and setup.compiled_adam
        where = section.where("zero_optimization.offload_optimizer")
        if away is not None and setup.offloads:
            if away.ratio not in (None, 1) and not (own and setup.stage == 3):
                yield Problem(
                    f"{where}.ratio", f"needs zero_optimization.stage 3, {_OWN}; got {away.ratio:g}"
                )
            if away.super_offload and not (own and setup.stage == 3):
                yield Problem(f"{where}.super_offload", f"needs zero_optimization.stage 3, {_OWN}; got true")
            if away.cpuadam_cores_perc is not None and not away.super_offload:
                message = "has no effect without super_offload; set that, or remove it"
                yield Problem(f"{where}.cpuadam_cores_perc", f"{message}; got {away.cpuadam_cores_perc:g}")
        if config.zero_force_ds_cpu_optimizer and setup.offloads and not own:
            message = "refuses torch's AdamW, which the job has: remove it, or set optimizer: {type: AdamW}; got true"
            yield Problem(section.where("zero_force_ds_cpu_optimizer"), message)


def secondary_partitions(spec: Spec) -> Iterator[Problem]:
    """Problems of `zero_hpz_partition_size`: groups that do not divide the ranks, and two sizes in one trainer."""
    ranks = spec.trainer.ranks
    sizes = dict[str, int]()
    for model in spec.graph.trained:
        zero = spec.trained_deepspeed(model.field).zero_optimization
        if zero.stage == 3 and (size := zero.zero_hpz_partition_size or 1) > 1:
            own = model.field == "critic" and spec.trainer.critic_deepspeed is not None
            sizes[SECTIONS[own].where("zero_optimization.zero_hpz_partition_size")] = min(size, ranks)
    for where, size in sizes.items():
        if ranks % size:
            message = f"must divide the {ranks} ranks (replicas x processesPerReplica); got {size}"
            yield Problem(where, message)
    if len(set(sizes.values())) > 1:
        message = "the trainer's models share the groups of this size; make them equal"
        yield Problem(list(sizes)[-1], f"{message}; got {show(list(sizes.values()))}")


def _setups(spec: Spec) -> Iterator[tuple[Section, DeepSpeedConfig, Setup]]:
    for section, config in given_sections(spec):
        yield section, config, Setup.of(config, spec.trained_dtype(section.model))
