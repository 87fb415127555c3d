"""Whole jobs on a GPU by `rlhf run`: the shipped examples as they are, and settings that a GPU alone tries."""

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

import torch
from tests.support.rlhf import SENTIMENT, Finished, run

AT_ONCE = max(10, (os.cpu_count() or 1) // 3)
"""Jobs beside each other: each has up to four processes, which mostly import and wait."""
ZERO = "spec.trainer.deepspeed.zero_optimization"
STEADY = ("spec.steps=6", "spec.optimizer.schedule=constant", "spec.optimizer.warmupSteps=0")
SHORT = ("spec.steps=4", "spec.checkpoint.everySteps=4", "spec.data.promptsPerStep=32")
EXACT = "spec.trainer.deterministic=true"
COUNTED = (
    "spec.steps=20",
    "spec.data.promptsPerStep=128",
    "spec.evaluation.everySteps=20",
    "spec.checkpoint.everySteps=20",
)
"""80 updates, in few steps: each costs most for having vLLM wake up."""
FOUR = ("spec.steps=4", "spec.checkpoint.everySteps=2")
SHARED = "spec.generator.sharedWithTrainer=true"
VLLM = "spec.generator.sharedWithTrainer=false"
FLOAT32, BFLOAT16, FLOAT16 = (f"spec.model.dtype={dtype}" for dtype in ("float32", "bfloat16", "float16"))
TRAINED = {"float32": FLOAT32, "bfloat16": BFLOAT16}
MUON = "spec.optimizer.matrices=muon"
EIGHT_BIT = "spec.optimizer.moments=8bit"
TWO_RANKS = "spec.trainer.processesPerReplica=2"
OF_TWO = {
    "ranks": (),
    "sequence-parallel": ("spec.trainer.sequenceParallelSize=2",),
    "zero2": (f"{ZERO}.stage=2",),
    "zero3": (f"{ZERO}.stage=3",),
}
"""What two ranks divide, by name."""
GRPO = Path(__file__).with_name("grpo.yaml")


@dataclass(frozen=True)
class Job:
    """The manifest of an example, by its path or one of the sentiment's by its name, or `GRPO`; and what a user would
    set in it."""

    manifest: str
    settings: tuple[str, ...] = ()
    policy: str = ""
    """Job whose model it starts from."""
    reward: str = ""
    """Job that made its reward model."""
    reference: str = ""
    """Job that made its teacher."""
    resumes: str = ""
    """Job in whose work directory it goes on."""
    gpus: int = 1
    vllm: bool = False
    fills: bool = False
    """Its engine fills the memory that others leave, all along: one such job at a time."""
    architectures: str = ""
    """TORCH_CUDA_ARCH_LIST, as images set it."""

    @property
    def file(self) -> Path:
        folder = SENTIMENT.parent if "/" in self.manifest else SENTIMENT
        return GRPO if self.manifest == "grpo" else folder / f"{self.manifest}.yaml"


JOBS: Mapping[str, Job] = {
    "sft": Job("sft"),
    "reward": Job("reward", ("spec.steps=30", "spec.checkpoint.everySteps=30"), policy="sft"),
    "ppo": Job("ppo", ("spec.steps=3", SHARED), policy="sft", reward="reward"),
    "ppo-in-turns": Job("ppo", policy="sft", reward="reward", vllm=True),
    "dpo": Job("dpo", SHORT, policy="sft"),
    "sft-packed": Job("sft", (*STEADY, BFLOAT16, "spec.trainer.attention=packed")),
    "sft-padded": Job("sft", (*STEADY, BFLOAT16, "spec.trainer.attention=padded")),
    "sft-whole": Job("sft", (*STEADY, EXACT)),
    "sft-half": Job("sft", (*STEADY, EXACT, "spec.steps=3", "spec.checkpoint.everySteps=3")),
    "sft-resumed": Job("sft", (*STEADY, EXACT, "spec.checkpoint.everySteps=3"), resumes="sft-half"),
    "grpo-whole": Job("grpo", (EXACT, *FOUR), policy="sft"),
    "grpo-half": Job("grpo", (EXACT, *FOUR, "spec.steps=2"), policy="sft"),
    "grpo-resumed": Job("grpo", (EXACT, *FOUR), policy="sft", resumes="grpo-half"),
    "sft-offload": Job("sft", (*SHORT, f"{ZERO}.stage=2", f"{ZERO}.offload_optimizer.device=cpu")),
    "sft-compiled-adam": Job(
        "sft", (*SHORT, "spec.trainer.deepspeed.optimizer.type=AdamW"), architectures="9.0a"
    ),
    "sft-float16": Job("sft", (*SHORT, FLOAT16, "spec.trainer.gradientCheckpointing=selective")),
    "reward-zero3": Job("reward", (*SHORT, BFLOAT16, f"{ZERO}.stage=3"), policy="sft"),
    "dpo-lora": Job("dpo", (*SHORT, BFLOAT16, "spec.model.lora.policy.rank=8"), policy="sft"),
    "grpo": Job("grpo", policy="sft"),
    "grpo-lora": Job(
        "grpo",
        (FLOAT32, "spec.model.lora.policy.rank=8", "spec.trainer.gradientCheckpointing=full"),
        policy="sft",
    ),
    "ppo-zero3": Job("ppo", (*SHORT, SHARED, BFLOAT16, f"{ZERO}.stage=3"), policy="sft", reward="reward"),
    "grpo-vllm": Job("grpo", (VLLM,), policy="sft", gpus=2, vllm=True),
    "grpo-in-turns": Job("grpo", (VLLM,), policy="sft", vllm=True),
    "grpo-oversampled-in-turns": Job(
        "grpo", (VLLM, *SHORT, "spec.rollout.oversampling=0.25"), policy="sft", vllm=True
    ),
    "grpo-structured-in-turns": Job(
        "grpo",
        (VLLM, "spec.sampling.topK=32", "spec.sampling.structuredOutputs={regex: '[a-z ]+[.]?'}"),
        policy="sft",
        vllm=True,
    ),
    "grpo-thinking-in-turns": Job(
        "grpo",
        (VLLM, "spec.sampling.thinking={budget: 8, end: '.', closing: ' so.'}"),
        policy="sft",
        vllm=True,
    ),
    "grpo-divided": Job("grpo", (VLLM, "spec.rollout.maxStaleness=1"), policy="sft", vllm=True, fills=True),
    "grpo-lora-in-turns": Job("grpo", (VLLM, "spec.model.lora.policy.rank=8"), policy="sft", vllm=True),
    "grpo-dora-in-turns": Job(
        "grpo",
        (VLLM, "spec.model.lora.policy.rank=8", "spec.model.lora.policy.weightDecomposed=true"),
        policy="sft",
        vllm=True,
    ),
    "grpo-float32-head-in-turns": Job("grpo", (VLLM, "spec.model.float32Head=true"), policy="sft", vllm=True),
    "sft-muon": Job("sft", (*SHORT, BFLOAT16, MUON)),
    "sft-8bit-whole": Job("sft", (*STEADY, EXACT, BFLOAT16, EIGHT_BIT)),
    "sft-8bit-half": Job(
        "sft", (*STEADY, EXACT, BFLOAT16, EIGHT_BIT, "spec.steps=3", "spec.checkpoint.everySteps=3")
    ),
    "sft-8bit-resumed": Job(
        "sft",
        (*STEADY, EXACT, BFLOAT16, EIGHT_BIT, "spec.checkpoint.everySteps=3"),
        resumes="sft-8bit-half",
    ),
    "sft-frozen": Job("sft", (*SHORT, BFLOAT16, "spec.model.freeze=[layers.0]")),
    "images": Job("images/guess"),
    "images-in-turns": Job("images/grpo", (VLLM, *COUNTED), policy="images", vllm=True),
    "experts": Job("experts/sft", (BFLOAT16,)),
    "experts-divided": Job("experts/grpo", (*SHORT, BFLOAT16), policy="experts", vllm=True, fills=True),
    "experts-replayed": Job(
        "experts/grpo",
        (*SHORT, BFLOAT16, "spec.experts.replay=rollout"),
        policy="experts",
        vllm=True,
        fills=True,
    ),
    "teacher": Job("arithmetic/sft", SHORT),
    "student": Job("distillation/student", SHORT),
    "distillation": Job("distillation/distillation", SHORT, policy="student", reference="teacher"),
    "distillation-in-turns": Job(
        "distillation/distillation", (VLLM, *SHORT), policy="student", reference="teacher", vllm=True
    ),
    **{f"sft-one-{dtype}": Job("sft", (*STEADY, setting)) for dtype, setting in TRAINED.items()},
    **{
        f"sft-{name}-of-two-{dtype}": Job("sft", (*STEADY, setting, TWO_RANKS, *settings), gpus=2)
        for dtype, setting in TRAINED.items()
        for name, settings in OF_TWO.items()
    },
    "sft-muon-of-two": Job("sft", (*SHORT, BFLOAT16, MUON, TWO_RANKS), gpus=2),
    "grpo-tensor-parallel": Job(
        "grpo", (VLLM, "spec.generator.tensorParallelSize=2"), policy="sft", gpus=3, vllm=True
    ),
    "grpo-parallel-in-turns": Job(
        "grpo", (VLLM, "spec.generator.tensorParallelSize=2"), policy="sft", gpus=2, vllm=True
    ),
    "grpo-replicas-in-turns": Job(
        "grpo",
        (VLLM, "spec.generator.replicas=2", "spec.trainer.processesPerReplica=2", f"{ZERO}.stage=3"),
        policy="sft",
        gpus=2,
        vllm=True,
    ),
}
"""By name; those that others start from first."""


def why_not(job: Job) -> str:
    """The reason for which this machine cannot run the job; empty if it can."""
    if job.vllm and find_spec("vllm") is None:
        return "vLLM is not installed"
    if EIGHT_BIT in job.settings and find_spec("bitsandbytes") is None:
        return "bitsandbytes is not installed"
    count = torch.cuda.device_count()
    return f"needs {job.gpus} GPUs; {count} here" if count < job.gpus else ""


class Jobs:
    """All jobs of `JOBS` that this machine can run, some at a time, each after those that it needs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._filled = Lock()
        self._runs: dict[str, Future[Finished]] = {}
        for name, job in JOBS.items():  # a job waits for earlier ones alone, so some worker always runs one
            if not why_not(job):
                self._runs[name] = self._pool.submit(self._run, name)

    def result(self, name: str) -> Finished:
        """The job's end, once it has ended; one whose predecessor failed fails with it."""
        return self._runs[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, name: str) -> Finished:
        job = JOBS[name]
        made = {
            field: getattr(job, field) for field in ("policy", "reward", "reference") if getattr(job, field)
        }
        for field, other in [*made.items(), *([("resumes", job.resumes)] if job.resumes else [])]:
            earlier = self.result(other)
            assert earlier.code == 0, f"its {field} {other!r} failed: {earlier.output[-1500:]}"
        models = [f"spec.model.{field}={self._folder / other / 'policy'}" for field, other in made.items()]
        flags = ("--resume",) if job.resumes else ()
        with self._filled if job.fills else nullcontext():
            return run(
                job.file,
                self._folder / (job.resumes or name),
                *(*models, *job.settings),
                flags=flags,
                CUDA_VISIBLE_DEVICES=",".join(map(str, range(job.gpus))),
                **({"TORCH_CUDA_ARCH_LIST": job.architectures} if job.architectures else {}),
                PYTHONPATH=os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(Path.cwd())))),
            )
