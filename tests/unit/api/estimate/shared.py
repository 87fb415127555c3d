"""Models and jobs for GPUs that processes share."""

from rlhf_api.estimate.shapes import Shape
from rlhf_api.estimate.sizes import Size

H200 = 150.1e9
SMALL = Size(1.544e9, Shape(28, 1536, 1536, 256, 8960, 151_936))
LARGE = Size(7.616e9, Shape(28, 3584, 3584, 512, 18_944, 152_064))
GRPO = (
    *("spec.algorithm=grpo", "spec.ppo={}", "spec.model.reward=null", "spec.generator={}"),
    *("spec.sampling={responsesPerPrompt: 8}", "spec.grpo={klCoefficient: 0}"),
)
AWAY = "spec.trainer.deepspeed.zero_optimization={stage: 2, offload_optimizer: {device: cpu}}"
AHEAD = "spec.rollout.maxStaleness=1"
EIGHT = ("spec.trainer.processesPerReplica=8", "spec.generator.replicas=8")
REFERENCE = ("spec.grpo={klCoefficient: 0.1}",)
