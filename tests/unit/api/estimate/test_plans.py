"""The plan of a job: pods, GPUs and memory of each role, and how it is shown."""

from pathlib import Path

import pytest
import yaml
from tests.support.tiny.models import tiny_model
from tests.unit.api.manifests import ALONE, GPU, SEVEN, STAGE, unchecked

from rlhf_api.estimate.resources import plan, problems
from rlhf_api.estimate.shapes import Shape
from rlhf_api.estimate.sizes import Size
from rlhf_api.roles import Role
from rlhf_operator.cli import main
from rlhf_operator.commands.plan_table import plan_lines

# overrides, role, pods, GPUs, how the memory's text begins and what else it says
PLANS = [
    ((), "trainer", 1, 0, None, ""),
    ((SEVEN, ALONE), "trainer", 1, 0, "289 GB without activations: 7.6e9 parameters x 2 models x (2 weights", ""),
    ((SEVEN,), "trainer", 1, 0, "289 GB", "the critic is taken to be as large as the policy"),
    ((SEVEN, GPU, ALONE, "spec.trainer.replicas=8", STAGE + "2"), "trainer", 8, 8, "58 of 80 GB", ""),
    (
        (SEVEN, ALONE, "spec.trainer.processesPerReplica=8", STAGE + "3"),
        *("trainer", 1, 0, "40 GB", "B / 8 ranks in an update + 2 GB of reduce buckets"),
    ),
    ((SEVEN, ALONE, "spec.trainer.replicas=512", STAGE + "3"), "trainer", 512, 0, "2.59 GB", "2 GB of reduce buckets"),
    (
        ("spec.model.parameters=70e9", GPU, ALONE, STAGE + "3", "spec.trainer.replicas=64"),
        *("trainer", 64, 64, "45.4 of 80 GB", "64e9 x (4 gradient copy) B / 64 ranks in an update"),
    ),
    (
        (SEVEN, ALONE, "spec.trainer.replicas=64", STAGE + "3", "spec.generator.sharedWithTrainer=true"),
        *("trainer", 64, 0, "19.5 GB", "7.6e9 x 2 B gathered to generate with"),
    ),
    (
        (SEVEN, ALONE, STAGE + "3", "spec.trainer.deepspeed.zero_optimization.sub_group_size=1e8"),
        *("trainer", 1, 0, "276 GB", "100e6 x (4 gradient copy) B in an update"),
    ),
    ((SEVEN, "spec.algorithm=sft"), "trainer", 1, 0, "152 GB", ""),
    ((SEVEN, "spec.model.dtype=float32", "spec.trainer.deepspeed={}", ALONE), "trainer", 1, 0, "213 GB", ""),
    (
        (SEVEN, ALONE, STAGE + "2", "spec.trainer.deepspeed.zero_optimization.offload_optimizer={device: cpu}"),
        *("trainer", 1, 0, "61.8 GB", "x (2 weights) B + 7.6e9 x (4 gradients) B in an update and 1 GB of its reduce"),
    ),
    (
        (SEVEN, ALONE, STAGE + "2", "spec.trainer.deepspeed.optimizer={type: AdamW}"),
        *("trainer", 1, 0, "244 GB", "(4 gradients) B in an update"),
    ),
    (
        (SEVEN, ALONE, STAGE + "2", "spec.trainer.deepspeed.optimizer={type: AdamW, params: {torch_adam: true}}"),
        *("trainer", 1, 0, "274 GB", "(4 gradients + 4 AdamW work) B in an update"),
    ),
    (
        (SEVEN, ALONE, STAGE + "2", "spec.trainer.criticDtype=float32", "spec.trainer.processesPerReplica=8"),
        *("trainer", 1, 0, "76 GB", "(2 weights + (4 master weights + 8 moments) / 8 ranks) B + 7.6e9 parameters"),
    ),
    (
        (SEVEN, ALONE, "spec.trainer.criticDeepspeed.zero_optimization={stage: 3}", "spec.trainer.replicas=8"),
        *("trainer", 8, 0, "90.3 GB", "+ 1 GB of reduce buckets"),
    ),
    (
        (SEVEN, ALONE, STAGE + "3", "spec.trainer.replicas=64", "spec.ppo.valueEma=0.9"),
        *("trainer", 64, 0, "7.22 GB", "reduce buckets + 7.6e9 x 4 B of its moving average / 64 ranks"),
    ),
    (
        (SEVEN, STAGE + "3", "spec.algorithm=grpo", "spec.grpo.referenceEma=0.9",
         "spec.trainer.deepspeed.zero_optimization.offload_param={device: cpu}",
         "spec.trainer.deepspeed.zero_optimization.offload_optimizer={device: cpu}"),
        *("trainer", 1, 0, "1 GB", "1 GB of reduce buckets"),  # the average lies on the CPU with the weights
    ),
    ((SEVEN, "spec.generator.replicas=3"), "generator", 3, 0, "30.4 GB without the KV cache", "15.2 GB of new"),
    (
        (SEVEN, GPU, "spec.generator.tensorParallelSize=2", "spec.generator.pods.gpu.count=2"),
        *("generator", 1, 2, "22.8 of 80 GB", "/ 2 GPUs + 15.2 GB of new weights received beside them; 32.4 GB are"),
    ),
    (
        (SEVEN, GPU, "spec.model.lora={policy: {rank: 16}}"),
        *("generator", 1, 1, "30.4 of 80 GB", "7.6e9 parameters x 2 B + 15.2 GB of frozen weights kept beside them"),
    ),
    ((SEVEN, "spec.generator.dtype=float16", "spec.trainer.dtype=float32"), "generator", 1, 0, "45.6 GB", "30.4 GB of"),
    ((SEVEN, "spec.generator.engineArguments={quantization: fp8}"), "generator", 1, 0, None, ""),
    ((SEVEN,), "reward", 1, 0, "15.2 GB", "the reward model is taken to be as large as the policy"),
    ((SEVEN, ALONE), "reward", 1, 0, None, ""),
    ((SEVEN, "spec.reference.dtype=float32", "spec.reference.replicas=2"), "reference", 2, 0, "30.4 GB", "x 4 B"),
    ((SEVEN, "spec.model.reference=org/older"), "reference", 1, 0, "15.2 GB", "reference model is taken to be"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "role", "pods", "gpus", "begins", "says"), PLANS)
def test_plans(overrides, role, pods, gpus, begins, says) -> None:
    role_plan = plan(unchecked(*overrides))[Role(role)]
    assert (role_plan.pods, role_plan.gpus) == (pods, gpus)
    if begins is None:
        assert role_plan.memory is None
    else:
        assert role_plan.memory.startswith(begins)
        assert says in role_plan.memory
        assert len(role_plan.memory) < 400


def test_sizes_that_a_host_found_win() -> None:
    spec = unchecked(SEVEN, GPU)
    sizes = {"policy": Size(1e9), "reward": Size(2e9)}
    made = plan(spec, sizes)
    assert made[Role.TRAINER].memory.startswith("58 of 80 GB without activations: (1e9 + 2e9) parameters x")
    assert made[Role.REWARD].memory == "4 of 80 GB without activations: 2e9 parameters x 2 B"
    assert made[Role.REFERENCE].memory == "2 of 80 GB without activations: 1e9 parameters x 2 B"
    assert not [p for p in problems(spec, sizes) if p.where == "spec.trainer"]


@pytest.mark.parametrize(("role", "share"), [("reference", 0.85), ("reward", 0.92)])
def test_a_frozen_model_has_the_share_of_a_gpu_that_vllm_fills(role: str, share: float) -> None:
    served = (f"spec.{role}.engine=vllm", f"spec.{role}.pods.gpu={{count: 1, memoryGigabytes: 80}}")

    def refused(*overrides: str) -> list[str]:
        sizes = {"policy": Size(37e9), "reward": Size(37e9)}
        return [
            p.message for p in problems(unchecked(*served, *overrides), sizes) if p.where == f"spec.{role}"
        ]

    (message,) = refused()
    assert (
        f"one GPU must hold 74 GB: 37e9 parameters x 2 B; it has 80 GB, of which vLLM fills {share}; "
        in message
    )
    wide = f"spec.{role}.engineArguments"
    assert (
        refused(f"{wide}={{gpu-memory-utilization: 0.95}}")
        == refused(f"{wide}={{kv-cache-memory-bytes: 1}}")
        == []
    )


def test_a_remedy_raises_the_stage_of_both_models() -> None:
    tight = (SEVEN, GPU, ALONE, "spec.trainer.pods.gpu.count=8", "spec.trainer.processesPerReplica=8")
    own = "spec.trainer.criticDeepspeed.zero_optimization.stage="

    def refused(*overrides: str) -> list[str]:
        return [p.message for p in problems(unchecked(*tight, *overrides)) if p.where == "spec.trainer"]

    (message,) = refused(own + "1")
    assert "zero_optimization.stage 2 of deepspeed and criticDeepspeed both" in message
    assert refused(STAGE + "2", own + "2") == []


def test_activations_that_do_not_fit_are_refused_with_what_helps() -> None:
    """With the shape of Qwen2.5-1.5B: 37 GB of weights and states, and 2.1 MB of activations for each token."""
    shape = Shape(layers=28, hidden=1536, queries=1536, keys=256, inner=8960, vocabulary=151_936)
    sizes = {"policy": Size(1.54e9, shape)}

    def refused(*overrides: str) -> list[str]:
        spec = unchecked("spec.algorithm=grpo", GPU, ALONE, *overrides)
        return [str(p) for p in problems(spec, sizes) if p.where == "spec.trainer"]

    assert refused() == []
    (problem,) = refused("spec.trainer.microBatchTokens=65536")
    assert problem.startswith("spec.trainer: one GPU must hold 169 GB: 1.54e9 parameters x (2 weights")
    assert "and 138 GB of activations in the backward pass; it has 80 GB; use " in problem
    remedies = problem.rpartition("use ")[2].partition(" (ranks")[0].split(", or ")
    assert remedies == ["trainer.gradientCheckpointing full", "trainer.microBatchTokens 16384"]
    for remedy in remedies:
        field, value = remedy.split(" ")
        assert refused("spec.trainer.microBatchTokens=65536", f"spec.{field}={value}") == []
    long = "spec.pretraining={data: [text.jsonl]}", "spec.data.maxResponseLength=16000"
    (problem,) = refused("spec.trainer.microBatchTokens=65536", *long)
    assert "microBatchTokens" not in problem, "no row of 16512 tokens is divided, whatever the number"


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


def test_the_plan_tells_what_pods_request_on_a_cluster() -> None:
    served = "spec.pods.gpu={count: 1}", "spec.reference.pods.gpu=null"
    sizes = "spec.model.parameters=1e9", "spec.model.reference=null"
    lines = plan_lines(unchecked(*sizes))
    assert "warning: no pod asks for a GPU, so on a cluster 1e9 parameters" in "\n".join(lines)
    requested = "on a cluster each pod requests this memory, unless pods.resources says otherwise: "
    (line,) = (line for line in lines if line.startswith(requested))
    assert line.endswith("reference 1908Mi")
    assert not [line for line in plan_lines(unchecked(*sizes, served[0])) if requested in line]
    own = "spec.pods.resources={requests: {cpu: '1'}}"
    assert not [line for line in plan_lines(unchecked(*sizes, own)) if requested in line]


def test_the_plan_tells_what_long_responses_take_with_their_masks() -> None:
    long = ("spec.data.promptsPerStep=1000", "spec.sampling.maxNewTokens=32768")
    (line,) = plan_lines(unchecked(*long, "spec.sampling.topK=-1"))
    assert line == (
        "a step's responses, 32.77e6 tokens at most, take 1.44 GB of the node's memory in each rank of the trainer, "
        "3.28 GB in rank 0"
    )
    (masked,) = plan_lines(unchecked(*long, "spec.sampling.topK=50", "spec.rollout.maxStaleness=1"))
    assert "8.13 GB of the node's memory in each rank" in masked
    assert masked.endswith("30.1 GB in rank 0, of which 26.2 GB are sampling masks")
    (replayed,) = plan_lines(unchecked(*long, "spec.sampling.topK=-1", "spec.replay.maxReplayEpisode=2"))
    assert "4.33 GB of the node's memory in each rank of the trainer, 4.72 GB in rank 0" in replayed


@pytest.mark.parametrize(
    ("replay", "each", "first", "experts"), [("rollout", 27.0, 80.0, 76.7), ("policy", 27.0, 28.8, 25.6)]
)
def test_the_plan_tells_what_replayed_experts_take(
    replay: str, each: float, first: float, experts: float
) -> None:
    """Of 33,280 tokens with the longest prompt, eight in each of 48 layers."""
    settings = ("spec.data.promptsPerStep=1000", "spec.sampling={maxNewTokens: 32768, topK: -1}")
    job = unchecked(*settings, f"spec.experts.replay={replay}")
    lines = plan_lines(job, {"policy": Size(30e9, choices=48 * 8)})
    (line,) = (line for line in lines if line.startswith("a step's responses"))
    assert f"take {each:g} GB of the node's memory in each rank" in line
    assert line.endswith(f"{first:g} GB in rank 0, of which {experts:g} GB are experts")


def test_validate_shows_the_plan_and_refuses_by_the_sizes_of_files(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "m", tie=False, seed=0)
    Path("d.jsonl").write_text('{"prompt": "x", "answer": "y"}\n')
    data = {"train": ["d.jsonl"], "maxPromptLength": 64, "maxResponseLength": 64, "promptsPerStep": 1}
    spec = {"algorithm": "sft", "steps": 3, "model": {"policy": "m/"}, "data": data}
    made = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "x"}, "spec": spec}
    Path("job.yaml").write_text(yaml.safe_dump(made))
    capsys.readouterr()  # whatever libraries say that made the model
    assert main(["validate", "job.yaml", "--set", "spec.model.policy=./m"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "job.yaml is valid: x, sft, 3 steps on trainer x 1"
    assert out[2].startswith("trainer     1     0  ")
    assert " GB: 107072 parameters x (2 weights +" in out[2]
    assert out[2].endswith("GB of activations in the backward pass")
    assert main(["validate", "job.yaml", "--no-files"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    tight = ["--set", "spec.trainer.pods.gpu={count: 1, memoryGigabytes: 0.002}"]
    assert main(["validate", "job.yaml", *tight]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: spec.trainer: one GPU must hold ")
    assert " GB: 107072 parameters x " in error
    assert "; it has 0.002 GB; " in error
