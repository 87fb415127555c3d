"""Rules of a policy that reads images: what of a job is done with them."""

from collections.abc import Iterator

from ..errors.problem import Problem
from ..roles import Role
from ..sections.model import VISION
from ..spec import Spec

TRAINED_BY = ("sft", "grpo", "dr_grpo", "rloo", "reinforce_pp", "gspo", "cispo")
"""Algorithms that train on rows with images."""


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of a job that creates its policy; `policy_problems` are those of one that is read."""
    if spec.model.create is not None:
        yield from policy_problems(spec, spec.model.create.model_type)


def policy_problems(spec: Spec, model_type: str | None) -> Iterator[Problem]:
    """Problems of the job by the type of its policy: what is refused with one that reads images, and settings of images
    with any other."""
    if model_type not in VISION:
        unread = {"model.trainVision": spec.model.train_vision, "data.maxPixels": spec.data.max_pixels}
        for field, value in unread.items():
            if value:
                message = f"applies only to a policy that reads images ({', '.join(VISION)}); remove it"
                yield Problem(f"spec.{field}", f"{message}; got {str(value).lower()}")
        return
    if spec.algorithm not in TRAINED_BY:
        message = f"a policy that reads images is trained by {', '.join(TRAINED_BY)}"
        yield Problem("spec.algorithm", f"{message}; got {spec.algorithm}")
    if spec.model.adapter("policy") is not None:
        yield Problem("spec.model.lora.policy", "a policy that reads images has no adapter yet; remove this")
    stage, most = (
        spec.trained_deepspeed("policy").zero_optimization.stage,
        1 if spec.model.train_vision else 2,
    )
    if stage > most:
        # DeepSpeed gathers weights, and at stage 2 sums gradients, in the order in which a rank comes by them.
        message = "expects the same order of layers on all ranks, and a micro-batch may have no image"
        where = "spec.trainer.deepspeed.zero_optimization.stage"
        yield Problem(where, f"{message}; use {most} or less; got {stage}")
    if (size := spec.trainer.sequence_parallel_size) > 1:
        yield Problem(
            "spec.trainer.sequenceParallelSize", f"a sequence with images stays whole; use 1; got {size}"
        )
    if spec.graph.generates and spec.algorithm in TRAINED_BY:
        yield from _sampled(spec)


def _sampled(spec: Spec) -> Iterator[Problem]:
    """Problems of settings under which the images of prompts for sampled responses would not be read."""
    if spec.environment is not None:
        message = "the turns of an episode have no images; use reward functions, and remove this"
        yield Problem("spec.environment", message)
    for model in spec.reward_models:
        message = "a reward model reads no images; use spec.reward.functions, which get those of the row"
        yield Problem(model.where, f"{message}; got {model.path!r}")
    if Role.REFERENCE in spec.graph.roles and spec.reference.engine == "vllm":
        message = "reads no images as a reference; use transformers"
        yield Problem("spec.reference.engine", f"{message}; got vllm")
    if spec.replay.window:
        message = "an episode is stored without its images, and could not be trained on again; remove this"
        yield Problem("spec.replay.maxReplayEpisode", f"{message}; got {spec.replay.max_replay_episode}")
