"""GPUs and memory worked out before a run, against what models, DeepSpeed and GPUs really take."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.api import kept as real
from tests.api.manifests import document, job
from tests.support.models import tiny_model
from tests.support.vllm_server import free_port
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf_api.manifest import RLHFJob, apply_override, parse
from rlhf_api.memory import Zero, kept, trainer, updating
from rlhf_api.model_files import model_sizes
from rlhf_api.parameters import count_parameters
from rlhf_api.problems import InvalidJob
from rlhf_api.resources import plan, problems
from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator.cli import main
from rlhf_operator.plan_table import plan_lines

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
SEVEN = "spec.model.parameters=7.6e9"
GPU = "spec.pods.gpu={count: 1, memoryGigabytes: 80}"
ALONE = "spec.model.reward=null"  # the critic then starts from the policy
STAGE = "spec.trainer.deepspeed.zero_optimization.stage="


def unchecked(*overrides: str) -> Spec:
    """A spec that may be refused."""
    return RLHFJob.model_validate_json(json.dumps(document(*overrides))).spec


TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2")
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
SHAPES = {
    "default": {},
    "small": {**SMALL, "num_key_value_heads": 2, "vocab_size": 300},
    "heads": {**SMALL, "num_key_value_heads": 4, "head_dim": 24},
    "biases": {**SMALL, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "tied": {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "untied": {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": False},
}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4}
GPT2_SHAPES = {
    "small": {"n_positions": 77},
    "inner": {"n_inner": 50},
    "untied": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("kind", TYPES)
def test_parameters_are_those_of_transformers(kind: str) -> None:
    shapes = {name: GPT2 | shape for name, shape in GPT2_SHAPES.items()} | {"default": {}}
    for name, shape in (shapes if kind == "gpt2" else SHAPES).items():
        config = AutoConfig.for_model(kind, **shape)
        config.num_labels = 1
        for made in (AutoModelForCausalLM, AutoModelForSequenceClassification):
            with torch.device("meta"):
                model = made.from_config(config)
            # Of `create` only what the user says is known, of a directory everything.
            for known in (shape, config.to_dict()):
                written = {**known, "model_type": kind, "architectures": [type(model).__name__]}
                assert count_parameters(written) == sum(p.numel() for p in model.parameters()), name


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "mixtral"},
        {"model_type": ["llama"]},
        {"model_type": "llama", "hidden_size": "wide"},
        {"model_type": "llama", "hidden_size": 1.5},
        {"model_type": "llama", "hidden_size": None},
        {"model_type": "llama", "num_attention_heads": 0},
        {"model_type": "llama", "num_hidden_layers": -40},
        {"model_type": "llama", "num_hidden_layers": 10**400},
        {"model_type": "gpt2", "n_embd": None},
        {"model_type": "llama", "architectures": 3},
    ],
    ids=str,
)
def test_other_models_are_not_counted(config) -> None:
    assert count_parameters(config) is None


# dtype, stage, ranks, optimizer on the CPU: bytes of each parameter kept by a model, and more in an update; as
# torch.cuda saw them on H200s, rounded to 0.1, the latter a lower bound where the optimizer is away
SEEN = [
    ("bfloat16", 1, 1, False, 18.0, 6.0),
    ("bfloat16", 1, 2, False, 12.0, 4.0),
    ("bfloat16", 2, 1, False, 14.0, 8.0),
    ("bfloat16", 2, 2, False, 8.0, 4.0),
    ("bfloat16", 3, 1, False, 18.0, 8.0),
    ("bfloat16", 3, 2, False, 9.0, 4.0),
    ("float16", 1, 1, False, 14.0, 10.0),
    ("float16", 2, 1, False, 14.0, 10.0),
    ("float16", 3, 1, False, 16.0, 8.0),
    ("float32", 0, 1, False, 12.0, 8.0),
    ("float32", 0, 2, False, 12.0, 8.0),
    ("float32", 1, 1, False, 16.0, 12.0),
    ("float32", 1, 2, False, 10.0, 6.0),
    ("float32", 2, 1, False, 16.0, 12.0),
    ("float32", 2, 2, False, 10.0, 6.0),
    ("float32", 3, 1, False, 20.0, 8.0),
    ("float32", 3, 2, False, 10.0, 4.0),
    ("bfloat16", 1, 1, True, 2.0, 8.3),
    ("bfloat16", 1, 2, True, 2.0, 6.3),
    ("bfloat16", 2, 1, True, 2.0, 5.8),
    ("bfloat16", 2, 2, True, 2.0, 3.0),
    ("bfloat16", 3, 1, True, 2.0, 0.6),
    ("bfloat16", 3, 2, True, 1.0, 0.4),
    ("float16", 1, 1, True, 2.0, 2.3),
    ("float16", 2, 2, True, 2.0, 0.9),
    ("float32", 1, 2, True, 4.0, 4.3),
    ("float32", 2, 1, True, 4.0, 3.4),
    ("float32", 3, 2, True, 2.0, 0.6),
]


@pytest.mark.parametrize(("dtype", "stage", "ranks", "away", "keeps", "more"), SEEN)
def test_the_formulae_are_what_gpus_showed(dtype, stage, ranks, away, keeps, more) -> None:
    zero = Zero(dtype=dtype, stage=stage, ranks=ranks, optimizer_away=away)
    assert kept(zero).bytes(ranks) == keeps
    found = updating(zero).bytes(ranks)
    assert found <= more if away else found == more


@pytest.mark.slow
def test_the_formulae_are_what_deepspeed_keeps() -> None:
    meeting = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *meeting, "--nproc-per-node=2", real.__file__],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    for name, found in json.loads(finished.stdout).items():
        dtype, stage = real.CASES[name]
        assert found == pytest.approx(kept(Zero(dtype=dtype, stage=stage, ranks=2)).bytes(2), abs=0.05), name


# overrides, role, pods, GPUs, how the memory's text begins and what else it says
PLANS = [
    ((), "trainer", 1, 0, None, ""),
    ((SEVEN, ALONE), "trainer", 1, 0, "319 GB without activations: 7.6e9 parameters x 2 models x (2 weights", ""),
    ((SEVEN,), "trainer", 1, 0, "319 GB", "the critic is taken to be as large as the policy"),
    ((SEVEN, GPU, ALONE, "spec.trainer.replicas=8", STAGE + "2"), "trainer", 8, 8, "60.8 of 80 GB", ""),
    (
        (SEVEN, ALONE, "spec.trainer.processesPerReplica=8", STAGE + "3"),
        *("trainer", 1, 0, "43.8 GB", "B / 8 ranks in an update + 2 GB of reduce buckets"),
    ),
    (
        (SEVEN, ALONE, "spec.trainer.replicas=512", STAGE + "3"),
        *("trainer", 512, 0, "15.3 GB", "whole on every rank while it is loaded"),
    ),
    (
        (SEVEN, ALONE, "spec.trainer.replicas=64", STAGE + "3", "spec.generator.sharedWithTrainer=true"),
        *("trainer", 64, 0, "19.5 GB", "7.6e9 x 2 B gathered to generate with"),
    ),
    (
        (SEVEN, ALONE, STAGE + "3", "spec.trainer.deepspeed.zero_optimization.sub_group_size=1e8"),
        *("trainer", 1, 0, "276 GB", "100e6 x (4 gradient copy + 4 AdamW work) B in an update"),
    ),
    ((SEVEN, "spec.algorithm=sft"), "trainer", 1, 0, "182 GB", ""),
    ((SEVEN, "spec.model.dtype=float32", "spec.trainer.deepspeed={}", ALONE), "trainer", 1, 0, "243 GB", ""),
    (
        (SEVEN, ALONE, STAGE + "2", "spec.trainer.deepspeed.zero_optimization.offload_optimizer={device: cpu}"),
        *("trainer", 1, 0, "60.8 GB", "x (2 weights) B + 7.6e9 x (4 gradients) B in an update"),
    ),
    (
        (SEVEN, ALONE, STAGE + "2", "spec.trainer.deepspeed.optimizer={type: AdamW}"),
        *("trainer", 1, 0, "243 GB", "(4 gradients) B in an update"),
    ),
    ((SEVEN, "spec.generator.replicas=3"), "generator", 3, 0, "30.4 GB without the KV cache", "15.2 GB of new"),
    (
        (SEVEN, GPU, "spec.generator.tensorParallelSize=2", "spec.generator.pods.gpu.count=2"),
        *("generator", 1, 2, "22.8 of 80 GB", "/ 2 GPUs + 15.2 GB of new weights received beside them; 32.4 GB are"),
    ),
    ((SEVEN, "spec.generator.dtype=float16", "spec.trainer.dtype=float32"), "generator", 1, 0, "45.6 GB", "30.4 GB of"),
    ((SEVEN, "spec.generator.engineArguments={quantization: fp8}"), "generator", 1, 0, None, ""),
    ((SEVEN,), "reward", 1, 0, "15.2 GB", "the reward model is taken to be as large as the policy"),
    ((SEVEN, ALONE), "reward", 1, 0, None, ""),
    ((SEVEN, "spec.reference.dtype=float32", "spec.reference.replicas=2"), "reference", 2, 0, "30.4 GB", "x 4 B"),
    ((SEVEN, "spec.model.reference=org/older"), "reference", 1, 0, "15.2 GB", "reference is taken to be"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "role", "pods", "gpus", "begins", "says"), PLANS)
def test_plans(overrides, role, pods, gpus, begins, says) -> None:
    found = plan(unchecked(*overrides))[Role(role)]
    assert (found.pods, found.gpus) == (pods, gpus)
    if begins is None:
        assert found.memory is None
    else:
        assert found.memory.startswith(begins)
        assert says in found.memory
        assert len(found.memory) < 400


def test_sizes_that_a_host_found_win() -> None:
    spec = unchecked(SEVEN, GPU)
    found = {"policy": 1e9, "reward": 2e9}
    made = plan(spec, found)
    assert made[Role.TRAINER].memory.startswith("66 of 80 GB without activations: (1e9 + 2e9) parameters x")
    assert made[Role.REWARD].memory == "4 of 80 GB without activations: 2e9 parameters x 2 B"
    assert made[Role.REFERENCE].memory == "2 of 80 GB without activations: 1e9 parameters x 2 B"
    assert not [p for p in problems(spec, found) if p.where == "spec.trainer"]


# overrides, field, what the message says
REFUSED = [
    (
        ("spec.pods.gpu={count: 2}", "spec.trainer.processesPerReplica=4"),
        "spec.trainer.pods.gpu.count",
        "a trainer pod uses 4: one for each process (spec.trainer.processesPerReplica 4); set 4; "
        "spec.pods.gpu.count is 2",
    ),
    (
        ("spec.trainer.pods.gpu={count: 8}", "spec.trainer.processesPerReplica=4"),
        *("spec.trainer.pods.gpu.count", "set 4; got 8"),
    ),
    (
        (
            "spec.generator.pods.gpu={count: 2}",
            "spec.generator.tensorParallelSize=2",
            "spec.generator.engineArguments.pipeline-parallel-size=3",
            "spec.generator.engineArguments.data-parallel-size=2",
        ),
        "spec.generator.pods.gpu.count",
        "uses 12: tensorParallelSize 2 x pipeline-parallel-size 3 x data-parallel-size 2; set 12; got 2",
    ),
    (("spec.reference.pods.gpu={count: 2}",), "spec.reference.pods.gpu.count", "uses 1: it runs one model; set 1"),
    (
        (SEVEN, GPU, ALONE),
        "spec.trainer",
        "one GPU must hold 319 GB: 7.6e9 parameters x 2 models x (2 weights + 4 gradients + 4 master weights + "
        "8 moments) B + 7.6e9 x (2 bfloat16 gradients + 4 AdamW work) B in an update; it has 80 GB; use at least 5 "
        "ranks with zero_optimization.stage 2, or at least 4 ranks with zero_optimization.stage 3, or "
        "zero_optimization.stage 2 with offload_optimizer.device cpu",
    ),
    ((SEVEN, GPU, ALONE, "spec.trainer.replicas=3", STAGE + "3"), "spec.trainer", "use at least 4 ranks, or offload_"),
    (
        (SEVEN, GPU, "spec.trainer.replicas=3"),
        *("spec.trainer", "use at least 7 ranks, or zero_optimization.stage 2 (ranks"),
    ),
    (
        (SEVEN, "spec.trainer.pods.gpu={count: 4, memoryGigabytes: 80}", "spec.trainer.processesPerReplica=4", ALONE,
         STAGE + "2"),
        *("spec.trainer", "use at least 8 ranks, or zero_optimization.stage 3 (ranks"),
    ),
    (
        ("spec.model.parameters=70e9", GPU, ALONE, STAGE + "3", "spec.trainer.replicas=256"),
        *("spec.trainer", "no number of ranks is enough: use GPUs of at least 140 GB or a smaller model"),
    ),
    (("spec.model.parameters=70e9", GPU), "spec.reference", "140 GB: 70e9 parameters x 2 B; it has 80 GB; use larger"),
    (
        (SEVEN, GPU, "spec.generator.engineArguments={gpu-memory-utilization: 0.92}"),
        "spec.generator.engineArguments.gpu-memory-utilization",
        "vLLM fills 73.6 of 80 GB, but 15.2 GB of new weights (7.6e9 parameters x 2 B) are received beside it; "
        "use at most 0.78; got 0.92",
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
        *("spec.generator", "use GPUs of more than 142 GB: new weights come whole to every GPU"),
    ),
]  # fmt: skip


OPEN = "spec.generator.engineArguments={}"


def test_what_a_generator_fills_leaves_room_for_new_weights() -> None:
    card = "spec.generator.pods.gpu={count: 1, memoryGigabytes: 80}"

    def left(*overrides: str) -> str:
        memory = plan(job(*overrides, OPEN).spec)[Role.GENERATOR].memory
        assert memory is not None
        return memory

    assert "; 47.2 GB are left for the cache" in left(SEVEN, card), "0.78 of 80 GB, as if it were given"
    assert "; 72.6 GB are left for the cache" in left("spec.model.parameters=0.5e9", card), "vLLM's own 0.92"
    with pytest.raises(InvalidJob, match=r"one GPU must hold 30.4 GB: .*; it has 32 GB; use spec.*Size 2"):
        job(SEVEN, "spec.generator.pods.gpu={count: 1, memoryGigabytes: 32}", OPEN)


@pytest.mark.parametrize(("overrides", "where", "words"), REFUSED)
def test_impossible_jobs_are_refused_with_the_arithmetic(overrides, where, words) -> None:
    with pytest.raises(InvalidJob) as caught:
        job(*overrides)
    assert any(p.where == where and words in p.message for p in caught.value.problems), str(caught.value)


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


TRAINERS = st.builds(
    Zero,
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    stage=st.integers(1, 3),
    ranks=st.sampled_from([1, 2, 4, 16]),
)


@given(zero=TRAINERS, parameters=st.floats(1e8, 1e11))
def test_more_ranks_and_higher_stages_never_need_more_for_training(zero, parameters) -> None:
    models = [parameters, parameters]
    need = trainer(zero, models).total
    assert trainer(replace(zero, ranks=2 * zero.ranks), models).total <= need
    assert trainer(replace(zero, optimizer_away=True), models).total <= need


@given(
    parameters=st.floats(1e9, 5e10),
    stage=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    per_pod=st.sampled_from([1, 3, 8]),
    memory=st.sampled_from([24, 80, 141]),
)
def test_remedies_are_remedies_and_the_smallest(parameters, stage, dtype, per_pod, memory) -> None:
    gpu = f"spec.trainer.pods.gpu={{count: {per_pod}, memoryGigabytes: {memory}}}"
    base = (f"spec.model.parameters={parameters}", ALONE, gpu, f"spec.trainer.processesPerReplica={per_pod}",
            f"spec.trainer.dtype={dtype}", "spec.trainer.deepspeed.bf16=null")  # fmt: skip

    def refused(*overrides: str) -> str:
        found = problems(unchecked(*base, STAGE + str(stage), *overrides))
        return next((p.message for p in found if p.where == "spec.trainer"), "")

    message = refused()
    for ranks, other in re.findall(r"at least (\d+) ranks(?: with zero_optimization.stage (\d))?", message):
        pods, higher = divmod(int(ranks), per_pod)[0], STAGE + (other or str(stage))
        assert not refused(f"spec.trainer.replicas={pods}", higher)
        assert pods == 1 or refused(f"spec.trainer.replicas={pods - 1}", higher)
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


def test_sizes_of_model_directories(tmp_path: Path) -> None:
    whole = tiny_model(tmp_path / "whole", tie=True, seed=0)
    model = AutoModelForCausalLM.from_pretrained(whole)
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    (tmp_path / "shards" / "consolidated.safetensors").write_bytes((whole / "model.safetensors").read_bytes())
    model.config.save_pretrained(tmp_path / "configured")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "broken" / "config.json").write_text("[1]")
    names = {"policy": "whole", "critic": "shards", "reward": "configured", "reference": "broken"}
    overrides = [f"spec.model.{field}={tmp_path / name}" for field, name in names.items()]
    parameters = sum(p.numel() for p in model.parameters())
    assert model_sizes(unchecked(*overrides)) == dict.fromkeys(("policy", "critic", "reward"), parameters)
    assert model_sizes(unchecked()) == {}


def test_the_table_of_a_job() -> None:
    assert plan_lines(unchecked()) == []
    head = "role       pods  GPUs  memory of one GPU"
    assert plan_lines(unchecked("spec.trainer.pods.gpu={count: 1}", "spec.trainer.replicas=100")) == [
        head,
        "trainer     100   100  -",
        *(f"{role:9}     1     0  -" for role in ("generator", "reward", "reference")),
        "set spec.model.parameters, such as 7.6e9, to have the memory worked out",
        "set memoryGigabytes beside gpu.count to have it compared with what a GPU has",
    ]


def test_validate_shows_the_plan_and_refuses_by_the_sizes_of_files(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "m", tie=True, seed=0)
    Path("d.jsonl").write_text('{"prompt": "x", "answer": "y"}\n')
    spec = {"algorithm": "sft", "steps": 3, "model": {"policy": "m/"}, "data": {"train": ["d.jsonl"]}}
    made = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "x"}, "spec": spec}
    Path("job.yaml").write_text(yaml.safe_dump(made))
    assert main(["validate", "job.yaml", "--set", "spec.model.policy=./m"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "job.yaml is valid: x, sft, 3 steps on trainer x 1"
    assert out[2].startswith(
        "trainer     1     0  0.00218 GB without activations: 90816 parameters x (2 weights +"
    )
    assert main(["validate", "job.yaml", "--no-files"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    tight = ["--set", "spec.trainer.pods.gpu={count: 1, memoryGigabytes: 0.002}"]
    assert main(["validate", "job.yaml", *tight]) == 2
    assert "error: spec.trainer: one GPU must hold 0.00218 GB: 90816 parameters" in capsys.readouterr().err


def test_the_page_about_memory_is_what_the_code_does() -> None:
    text = PAGE.read_text()
    for dtype in ("bfloat16", "float16", "float32"):
        for stage in range(0 if dtype == "float32" else 1, 4):
            zero = Zero(dtype=dtype, stage=stage, ranks=8)
            assert f"| {dtype} | {stage} | {kept(zero).words(8)} | {updating(zero).words(8)} |" in text
    (written,) = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.S | re.M)
    made = yaml.safe_load(written)
    table, half, full = re.findall(r"^```text\n(.*?)\n```", text, flags=re.S | re.M)
    assert plan_lines(parse(made).spec) == table.splitlines()
    for overrides, message in (
        (("spec.trainer.processesPerReplica=4", "spec.trainer.pods.gpu.count=4"), half),
        (("spec.generator.engineArguments={gpu-memory-utilization: 0.92}",), full),
    ):
        changed = made
        for override in overrides:
            changed = apply_override(changed, override)
        with pytest.raises(InvalidJob) as caught:
            parse(changed)
        assert str(caught.value) == message
