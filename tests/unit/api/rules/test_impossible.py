"""Jobs that cannot run are refused with the arithmetic and a remedy that is one; others are not."""

import json
import re
from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.manifests import ALONE, GPU, SEVEN, STAGE, document, job, refusals, unchecked

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.resources import plan, problems
from rlhf_api.job import RLHFJob
from rlhf_api.roles import Role

ON_DISK = "offload_param: {device: nvme, nvme_path: /a}"
DEEPSPEED = "spec.trainer.deepspeed"
ADAM = DEEPSPEED + ".optimizer={type: AdamW, params: "
NUMBER = "must be greater than or equal to 1e-30; got "
# overrides, field, what the message says
REFUSED = [
    (("spec.optimizer.epsilon=1e-300",), "spec.optimizer.epsilon", NUMBER + "1e-300"),
    (
        ("spec.model.freeze=[embed_tokens]", "spec.model.lora={policy: {}}"),
        "spec.model.freeze",
        "an adapter of the policy freezes all of its weights; remove this, or spec.model.lora.policy; got "
        '["embed_tokens"]',
    ),
    *(
        ((f"spec.model.freeze=[{part}]",), "spec.model.freeze[0]", words)
        for part, words in (("''", "must "), ("'a b'", "must "), ("'^lm_head$'", "must "), ("7", "must be "))
    ),
    ((ADAM + "{eps: 0}}",), DEEPSPEED + ".optimizer.params.eps", NUMBER + "0"),
    ((ADAM + "{betas: [0.9]}}",), DEEPSPEED + ".optimizer.params.betas[1]", "is required"),
    ((ADAM + "{maximize: true}}",), DEEPSPEED + ".optimizer.params.maximize", "unknown field (value true)"),
    *(
        ((ADAM + f"{{torch_adam: true, {name}: false}}}}",), f"{DEEPSPEED}.optimizer.params.{name}", words)
        for name, words in (
            ("adam_w_mode", "is a setting of Adam alone; remove it; got false"),
            ("bias_correction", "is a setting of DeepSpeed's own Adam alone"),
            ("fp32_optimizer_states", "is a setting of DeepSpeed's own Adam on the CPU alone"),
        )
    ),
    *(
        (
            (f"{DEEPSPEED}.zero_optimization={{stage: 3, {name}: {{device: nvme}}}}",),
            *(f"{DEEPSPEED}.zero_optimization.{name}.nvme_path", "is needed for device nvme"),
        )
        for name in ("offload_optimizer", "offload_param")
    ),
    (
        (DEEPSPEED + ".zero_optimization={stage: 2, offload_optimizer: {device: nvme, nvme_path: /a}}",),
        *(DEEPSPEED + ".zero_optimization.offload_optimizer.device", "nvme needs zero_optimization.stage 3"),
    ),
    *(
        (
            (setting, f"spec.trainer.{section}.zero_optimization={{stage: 3, {ON_DISK}}}"),
            f"spec.trainer.{section}.zero_optimization.offload_param.device",
            f"the job keeps a moving average of the {model}, which is impossible with weights on disks; use cpu",
        )
        for setting, section, model in (
            ("spec.ppo.referenceEma=0.9", "deepspeed", "policy"),
            ("spec.ppo.valueEma=0.9", "deepspeed", "critic"),
            ("spec.ppo.valueEma=0.9", "criticDeepspeed", "critic"),
        )
    ),
    (
        ("spec.pods.gpu={count: 2}", "spec.trainer.processesPerReplica=4"),
        "spec.trainer.pods.gpu.count",
        "must be 4 for a trainer pod: one for each process (spec.trainer.processesPerReplica 4); "
        "spec.pods.gpu.count is 2",
    ),
    (
        ("spec.trainer.pods.gpu={count: 8}", "spec.trainer.processesPerReplica=4"),
        *("spec.trainer.pods.gpu.count", "4); got 8"),
    ),
    (
        (
            "spec.generator.pods.gpu={count: 2}",
            "spec.generator.tensorParallelSize=2",
            "spec.generator.engineArguments.pipeline-parallel-size=3",
            "spec.generator.engineArguments.data-parallel-size=2",
        ),
        "spec.generator.pods.gpu.count",
        "must be 12 for a generator pod: tensorParallelSize 2 x pipeline-parallel-size 3 x data-parallel-size 2; got 2",
    ),
    (
        ("spec.generator={tensorParallelSize: 8, podsPerReplica: 2}", "spec.generator.pods.gpu={count: 2}"),
        "spec.generator.pods.gpu.count",
        "must be 4 for a generator pod: tensorParallelSize 8 / podsPerReplica 2; got 2",
    ),
    (
        ("spec.generator={tensorParallelSize: 1001, podsPerReplica: 1001}",),
        "spec.generator.podsPerReplica",
        "must be less than or equal to 1000; got 1001",
    ),
    (
        ("spec.generator={replicas: 501, tensorParallelSize: 2, podsPerReplica: 2}",),
        "spec.generator.podsPerReplica",
        "501 generators of 2 pods each are more than 1000 pods in all",
    ),
    (
        ("spec.generator={tensorParallelSize: 2, podsPerReplica: 2, autoscale: {maxReplicas: 501}}",),
        "spec.generator.podsPerReplica",
        "501 generators of 2 pods each are more than 1000 pods in all",
    ),
    (
        ("spec.generator={tensorParallelSize: 4, podsPerReplica: 3}",),
        "spec.generator.podsPerReplica",
        "must divide the 4 GPUs of a generator (tensorParallelSize 4); got 3",
    ),
    (
        ("spec.generator={podsPerReplica: 2, engineArguments: {data-parallel-size: 2}}",),
        "spec.generator.engineArguments.data-parallel-size",
        "is for generators of one pod; use spec.generator.replicas; got 2",
    ),
    (
        (
            "spec.generator={tensorParallelSize: 2, podsPerReplica: 2}",
            "spec.generator.engineArguments.distributed-executor-backend=ray",
        ),
        "spec.generator.engineArguments.distributed-executor-backend",
        "must be mp where spec.generator.podsPerReplica is more than 1; got ray",
    ),
    (
        ("spec.reference.pods.gpu={count: 2}",),
        *("spec.reference.pods.gpu.count", "must be 1 for a reference pod: it runs one model; got 2"),
    ),
    (
        (SEVEN, GPU, ALONE),
        "spec.trainer",
        "one GPU must hold 289 GB: 7.6e9 parameters x 2 models x (2 weights + 4 gradients + 4 master weights + "
        "8 moments) B + 7.6e9 x (2 bfloat16 gradients) B in an update; it has 80 GB; use at least 5 "
        "ranks with zero_optimization.stage 2, or at least 4 ranks with zero_optimization.stage 3, or "
        "zero_optimization.stage 2 with offload_optimizer.device cpu",
    ),
    ((SEVEN, GPU, ALONE, "spec.trainer.replicas=3", STAGE + "3"), "spec.trainer", "use at least 4 ranks, or offload_"),
    (
        (SEVEN, GPU, "spec.trainer.replicas=3"),
        *("spec.trainer", "use at least 5 ranks, or zero_optimization.stage 2 (ranks"),
    ),
    (
        (SEVEN, "spec.trainer.pods.gpu={count: 4, memoryGigabytes: 80}", "spec.trainer.processesPerReplica=4", ALONE,
         STAGE + "2"),
        *("spec.trainer", "use at least 8 ranks, or zero_optimization.stage 3 (ranks"),
    ),
    (
        ("spec.model.parameters=70e9", GPU, ALONE, STAGE + "3", "spec.trainer.replicas=256",
         "spec.generator.sharedWithTrainer=true"),
        *("spec.trainer", "no number of ranks is enough: use GPUs of at least 140 GB or a smaller model"),
    ),
    (("spec.model.parameters=70e9", GPU), "spec.reference", "140 GB: 70e9 parameters x 2 B; it has 80 GB; use larger"),
    (
        (SEVEN, GPU, "spec.generator.engineArguments={gpu-memory-utilization: 0.92}"),
        "spec.generator.engineArguments.gpu-memory-utilization",
        "vLLM fills 73.6 of 80 GB, but 15.2 GB of new weights (7.6e9 parameters x 2 B) are received beside it; "
        "use at most 0.76; got 0.92",
    ),
    (
        (SEVEN, GPU, "spec.generator.engineArguments={gpu-memory-utilization: 0.92}", "spec.model.lora={policy: {}}"),
        "spec.generator.engineArguments.gpu-memory-utilization",
        "vLLM fills 73.6 of 80 GB, but 15.2 GB of frozen weights (7.6e9 parameters x 2 B) are kept beside it; "
        "use at most 0.76; got 0.92",
    ),
    (
        (SEVEN, GPU, "spec.generator.engineArguments={gpu-memory-utilization: 0.15}"),
        "spec.generator.engineArguments.gpu-memory-utilization",
        "vLLM may fill 12 of 80 GB, and the weights alone are 15.2 GB (7.6e9 parameters x 2 B); use more than 0.19; "
        "got 0.15",
    ),
    (
        (SEVEN, GPU, "spec.generator.engineArguments={kv-cache-memory-bytes: 50000000000}"),
        *("spec.generator.engineArguments.kv-cache-memory-bytes", "use at most 49600000000; got 50000000000"),
    ),
    (("spec.model.parameters=32e9", GPU), "spec.generator", "128 GB: 32e9 parameters x 2 B + 64 GB of new weights"),
    (("spec.model.parameters=32e9", GPU), "spec.generator", "use spec.generator.tensorParallelSize 8"),
    (
        ("spec.model.parameters=70e9", GPU),
        *("spec.generator", "use GPUs of more than 144 GB: new weights come whole to every GPU"),
    ),
]  # fmt: skip
OPEN = "spec.generator.engineArguments={}"


def test_what_a_generator_fills_leaves_room_for_new_weights() -> None:
    card = "spec.generator.pods.gpu={count: 1, memoryGigabytes: 80}"

    def left(*overrides: str) -> str:
        memory = plan(job(*overrides, OPEN).spec)[Role.GENERATOR].memory
        assert memory is not None
        return memory

    assert "; 45.6 GB are left for the cache" in left(SEVEN, card), "0.76 of 80 GB, as if it were given"
    assert "; 72.6 GB are left for the cache" in left("spec.model.parameters=0.5e9", card), "vLLM's own 0.92"
    with pytest.raises(InvalidJob, match=r"one GPU must hold 30.4 GB: .*; it has 32 GB; use spec.*Size 2"):
        job(SEVEN, "spec.generator.pods.gpu={count: 1, memoryGigabytes: 32}", OPEN)


@pytest.mark.parametrize(("overrides", "where", "words"), REFUSED)
def test_impossible_jobs_are_refused_with_the_arithmetic(overrides, where, words) -> None:
    assert words in refusals(*overrides)[where]


FINE = [
    (SEVEN, "spec.pods.gpu={count: 1}"),
    ("spec.model.parameters=1e9", GPU),
    # The reward model, and so the critic, may be small: nobody knows.
    (SEVEN, GPU, "spec.trainer.replicas=7"),
    ("spec.reward.pods.gpu={count: 3}",),  # for its function
    (SEVEN, GPU, "spec.trainer.replicas=7", "spec.generator.engineArguments={quantization: fp8}"),
    (SEVEN, GPU, "spec.trainer.replicas=7", "spec.generator.engineArguments={kv-cache-memory-bytes: 9G}"),
]  # fmt: skip


@pytest.mark.parametrize("overrides", FINE)
def test_what_may_work_is_not_refused(overrides) -> None:
    job(*overrides)


@given(
    parameters=st.floats(1e9, 5e10),
    stage=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    per_pod=st.sampled_from([1, 3, 8]),
    memory=st.sampled_from([24, 80, 141]),
    averages=st.sampled_from(
        [(), ("spec.ppo.referenceEma=0.9",), ("spec.ppo.referenceEma=0.9", "spec.ppo.valueEma=0.9")]
    ),
    shared=st.sampled_from([1, 2]),
)
def test_remedies_are_remedies_and_the_smallest(
    parameters, stage, dtype, per_pod, memory, averages, shared
) -> None:
    gpu = f"spec.trainer.pods.gpu={{count: {per_pod}, memoryGigabytes: {memory}}}"
    base = (f"spec.model.parameters={parameters}", ALONE, gpu, f"spec.trainer.processesPerReplica={per_pod}",
            f"spec.trainer.dtype={dtype}", "spec.trainer.deepspeed.bf16=null",
            f"spec.trainer.sequenceParallelSize={shared}", *averages)  # fmt: skip
    fewest = lcm(per_pod, shared) // per_pod  # pods, whose ranks are whole sequence groups

    def refused(*overrides: str) -> str:
        reported = problems(unchecked(*base, STAGE + str(stage), *overrides))
        return next((p.message for p in reported if p.where == "spec.trainer"), "")

    message = refused()
    assert "use  (" not in message
    for ranks, other in re.findall(r"at least (\d+) ranks(?: with zero_optimization.stage (\d))?", message):
        pods, higher = divmod(int(ranks), per_pod)[0], STAGE + (other or str(stage))
        assert pods % fewest == 0
        assert not refused(f"spec.trainer.replicas={pods}", higher)
        assert pods == fewest or refused(f"spec.trainer.replicas={pods - fewest}", higher)
    if away := re.search(r"(?:zero_optimization.stage (\d) with )?offload_optimizer.device cpu", message):
        on_cpu = "spec.trainer.deepspeed.zero_optimization.offload_optimizer={device: cpu}"
        assert not refused(STAGE + (away[1] or str(stage)), on_cpu)


@given(
    parameters=st.floats(1e9, 1e11),
    memory=st.sampled_from([24, 80, 141]),
    parallel=st.sampled_from([1, 2, 8]),
)
def test_remedies_of_generators(parameters, memory, parallel) -> None:
    def refused(*overrides: str) -> str:
        gpu = f"spec.generator.pods.gpu={{count: 1, memoryGigabytes: {memory}}}"
        base = (f"spec.model.parameters={parameters}", gpu, "spec.generator.engineArguments={}")
        spec = unchecked(*base, f"spec.generator.tensorParallelSize={parallel}", *overrides)
        return next((p.message for p in problems(spec) if "gpu.count" not in p.where), "")

    # One piece of advice may lead to the next, and then there is none left.
    overrides: list[str] = []
    for _ in range(3):
        message = refused(*overrides)
        if at_most := re.search(r"use at most ([\d.]+);", message):
            overrides.append(f"spec.generator.engineArguments.gpu-memory-utilization={at_most[1]}")
        elif size := re.search(r"tensorParallelSize (\d+)", message):
            overrides.append(f"spec.generator.tensorParallelSize={size[1]}")
    assert not refused(*overrides) or "use GPUs of more than" in refused(*overrides)


STRANGE = st.sampled_from([0, -1, 1, 10**400, 1e308, 5e-324, "9G", True, [], {"a": 1}])


@given(parameters=st.floats(5e-324, 1.7e308), memory=st.floats(5e-324, 1.7e308), value=STRANGE, other=STRANGE)
def test_strange_numbers_do_no_harm(parameters, memory, value, other) -> None:
    made = document()
    arguments = {
        "gpu-memory-utilization": value,
        "pipeline-parallel-size": other,
        "data-parallel-size": value,
    }
    made["spec"]["generator"]["engineArguments"] = arguments
    made["spec"]["model"] = {"policy": "a/b", "parameters": parameters}
    made["spec"]["pods"] = {"gpu": {"count": 1, "memoryGigabytes": memory}}
    for cache in ({}, {"kv-cache-memory-bytes": other}):
        made["spec"]["generator"]["engineArguments"] = arguments | cache
        spec = RLHFJob.model_validate_json(json.dumps(made)).spec
        assert all(p.where and "\n" not in p.message for p in problems(spec))
        assert all(len(each.memory or "") < 500 for each in plan(spec).values())
