"""Rules of `spec.generator`: the number of generators, their pods, vLLM's options."""

import math
from collections.abc import Iterator

from ...errors.problem import Problem, show
from ...estimate.serving import COPIES, gpus
from ...sections.roles import MOST_PODS
from ...spec import Spec
from .arguments import engine_argument_problems

OWNED_ENGINE_ARGUMENTS = {
    "model": "spec.model.policy",
    "tokenizer": "spec.model.tokenizer",
    "dtype": "spec.generator.dtype",
    "seed": "spec.seed",
    "port": "the launcher",
    "host": "the launcher",
    "tensor-parallel-size": "spec.generator.tensorParallelSize",
    "weight-transfer-config": "the weight broadcast",
    "worker-extension-cls": "the weight broadcast",
    "middleware": "the token check",
    "served-model-name": "metadata.name",
    "generation-config": "spec.sampling",
    "max-logprobs": "spec.sampling.topK",
    "logprobs-mode": "the trainer's log-probabilities",
}
"""Options of vLLM that another field or the operator sets -> what sets them."""
_GROUP = "spec.generator.podsPerReplica"
_REACHED, _QUEUE = "the launcher, at whose address it is asked", "spec.generator.concurrentRequests"
OTHER_ENGINE_ARGUMENTS = {
    **dict.fromkeys(("uds", "root-path", "ssl-keyfile", "ssl-certfile"), _REACHED),
    **dict.fromkeys(("max-num-queued-reqs", "max-num-queued-tokens"), _QUEUE),
    "api-key": "the token check",
    "override-generation-config": "spec.sampling",
}
"""Options with which a server would not answer the trainer or would refuse its requests, or that requests override ->
what the job has in their place."""
GROUP_ENGINE_ARGUMENTS = dict.fromkeys(
    ("nnodes", "node-rank", "master-addr", "master-port", "headless"), _GROUP
)
"""Options by which the pods of one generator find each other."""


def autoscale(spec: Spec) -> Iterator[Problem]:
    scale = spec.generator.autoscale
    if scale is not None and scale.min_replicas > scale.max_replicas:
        yield Problem(
            "spec.generator.autoscale.minReplicas",
            f"must not exceed maxReplicas {scale.max_replicas}; got {scale.min_replicas}",
        )


def pods_per_replica(spec: Spec) -> Iterator[Problem]:
    """Problems of a generator's GPUs that cannot be divided evenly over its pods, and of workers other than vLLM's own
    processes."""
    pods, arguments = spec.generator.pods_per_replica, spec.generator.engine_arguments
    whole, words = gpus(spec.generator)
    if pods == 1 or spec.generator.shared_with_trainer:
        return
    most = max(
        spec.generator.replicas, spec.generator.autoscale.max_replicas if spec.generator.autoscale else 1
    )
    if most * pods > MOST_PODS:
        yield Problem(_GROUP, f"{most} generators of {pods} pods each are more than {MOST_PODS} pods in all")
    if whole % pods:
        yield Problem(_GROUP, f"must divide the {whole} GPUs of a generator ({words}); got {pods}")
    if arguments.get(COPIES, 1) != 1:
        where, copies = f"spec.generator.engineArguments.{COPIES}", arguments[COPIES]
        yield Problem(where, f"is for generators of one pod; use spec.generator.replicas; got {copies}")
    if (backend := arguments.get("distributed-executor-backend", "mp")) != "mp":
        where = "spec.generator.engineArguments.distributed-executor-backend"
        yield Problem(where, f"must be mp where {_GROUP} is more than 1; got {backend}")


def engine_arguments(spec: Spec) -> Iterator[Problem]:
    owned = OWNED_ENGINE_ARGUMENTS | OTHER_ENGINE_ARGUMENTS | GROUP_ENGINE_ARGUMENTS
    if spec.model.float32_head:
        owned["hf-overrides"] = "spec.model.float32Head"
    yield from engine_argument_problems("spec.generator", spec.generator, owned)
    given = spec.generator.engine_arguments.get("max-model-len", math.inf)
    needed = spec.data.max_prompt_length + spec.longest_response
    field = "maxNewTokens" if spec.environment is None else "environment.maxTokens"
    if not isinstance(given, int | float) or given < needed:
        yield Problem(
            "spec.generator.engineArguments.max-model-len",
            f"vLLM would refuse prompts that maxPromptLength ({spec.data.max_prompt_length}) and {field} "
            f"({spec.longest_response}) allow; use a number of at least {needed}, or less of those; got "
            f"{show(given)}",
        )
