"""Rules of `spec.generator`: the number of generators, their pods, vLLM's options."""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from .problems import Problem
from .roles import MOST_PODS
from .serving import COPIES, gpus
from .spec import Spec

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
}
"""Options with which a server would not answer the trainer, or would refuse its requests -> what the job has in their
place."""
GROUP_ENGINE_ARGUMENTS = dict.fromkeys(
    ("nnodes", "node-rank", "master-addr", "master-port", "headless"), _GROUP
)
"""Options by which the pods of one generator find each other."""
_ELSEWHERE = "keeps keys and values beyond the engine, where those of earlier weights are not cleared"
_REFUSED = {
    "enable-eplb": "moves experts between GPUs while they serve, and what is served is compared with what arrived",
    **dict.fromkeys(("kv-transfer-config", "kv-offloading-size"), _ELSEWHERE),
}
"""Options that interfere with what a generator does beside vLLM -> the reason."""


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
        where, seen = f"spec.generator.engineArguments.{COPIES}", arguments[COPIES]
        yield Problem(where, f"is for generators of one pod; use spec.generator.replicas; got {seen}")
    if (backend := arguments.get("distributed-executor-backend", "mp")) != "mp":
        where = "spec.generator.engineArguments.distributed-executor-backend"
        yield Problem(where, f"must be mp where {_GROUP} is more than 1; got {backend}")


def engine_arguments(spec: Spec) -> Iterator[Problem]:
    arguments = spec.generator.engine_arguments
    owned = OWNED_ENGINE_ARGUMENTS | OTHER_ENGINE_ARGUMENTS | GROUP_ENGINE_ARGUMENTS
    yield from engine_argument_problems("spec.generator", arguments, owned)
    for key, value in arguments.items():
        if (why := _REFUSED.get(_option(key))) is not None and value is not False:
            yield Problem(f"spec.generator.engineArguments.{key}", f"{why}; remove it")


def engine_argument_problems(
    section: str, arguments: Mapping[str, JsonValue], owned: Mapping[str, str]
) -> Iterator[Problem]:
    """Options that vLLM would not accept, or that the job sets itself: `owned` names what sets each."""
    for key, value in arguments.items():
        where, name = f"{section}.engineArguments.{key}", _option(key)
        _, dot, field = key.partition(".")
        if key != (spelled := name + dot + field):
            yield Problem(where, f"spell it as vLLM does, without dashes: {spelled}")
        if value is None:
            yield Problem(where, "null is not a value; for a flag use true or false; got null")
        if name in owned:
            yield Problem(where, f"is set by the job ({owned[name]}); remove it")


def _option(key: str) -> str:
    """The vLLM option that a key sets, in whole or one of its fields, such as `kv-transfer-config.kv_role`."""
    return key.lstrip("-").partition(".")[0].replace("_", "-")
