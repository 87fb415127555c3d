"""The generator role: execs the stock vLLM server, with our weight-transfer engine as a plugin. Heavy imports would add
to vLLM's start-up time.
"""

import json
import logging
import os
import sys
from pathlib import Path

from pydantic import JsonValue

from rlhf_api.contract.run import ProcessEnv, RunConfig, pods_each
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.serving import PIPELINE, UTILIZATION, Serving, gpus, left_open
from rlhf_api.estimate.sharing.divide import generator_options
from rlhf_api.estimate.sharing.problems import problems
from rlhf_api.estimate.sizes import Sizes
from rlhf_api.host.model_directory import directory_problem
from rlhf_api.roles import Role
from rlhf_api.rules.engines.vllm_options import engine_problems
from rlhf_api.sections.sampling import MOST_KEPT
from rlhf_api.spec import Spec

from ..engines.vllm.serve.gpu import gpu_memory
from ..engines.vllm.serve.launch import (
    SHARED,
    SLEEP_OPTIONS,
    check_head_size,
    check_places,
    cpu_options,
    engine_environment,
    experts_options,
    group_environment,
    group_options,
    head_options,
    on_cpu,
    option,
    weight_options,
)
from ..process.addresses import interface, listen_host
from ..process.gpu_turns import FOLDER, GpuTurns, own_gpus
from ..process.role import run_role
from ..process.settings import longest, model_source
from ..process.sizes import job_sizes
from ..transport import rdma

log = logging.getLogger(__name__)

EXTENSION = "rlhf_trainer.engines.vllm.weights.extension.WeightStatus"
FRONT = "rlhf_trainer.engines.vllm.front.middleware.Front"
SERVER = "rlhf_trainer.engines.vllm.serve.server"
FOLLOWER = "rlhf_trainer.engines.vllm.serve.follower"


def arguments(
    config: RunConfig, host: str, port: int, memory: float | None, *, rank: int = 0, master: str = ""
) -> list[str]:
    """Options of `vllm serve`. `memory`: bytes of each GPU, None on a CPU; the manifest's `engineArguments` come last.
    `rank`, `master`: of this pod in a multi-pod generator. Raises InvalidJob if they cannot serve this policy."""
    spec = config.spec
    pods = pods_each(spec, Role.GENERATOR)
    options: dict[str, JsonValue] = {
        "model": model_source(config, "policy").path,
        "tokenizer": model_source(config, "tokenizer").path,
        "served-model-name": config.job,
        "dtype": config.dtype(Role.GENERATOR),
        "seed": spec.seed,
        "host": host,
        "port": port,
        "max-model-len": longest(spec),
        "tensor-parallel-size": spec.generator.tensor_parallel_size,
        # Sampling parameters come from the job, not from the model repository; log-probabilities are of the sampled
        # distribution.
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": MOST_KEPT,
        "weight-transfer-config": json.dumps({"backend": "rlhf"}),
        "worker-extension-cls": EXTENSION,
        "middleware": FRONT,
        # vLLM renders the model's own, a program of its author, as it starts, without limits. Nothing asks it to chat.
        "chat-template": "{{ messages }}",
        # Images come with each request, their pixels as the trainer has normalised them.
        "mm-processor-cache-gb": 0,
        "mm-device-do-normalize": False,
        # One log line per prompt and probe would bury all others.
        "disable-uvicorn-access-log": True,
    }
    policy = model_source(config, "policy")
    check_places(policy)
    options |= weight_options(policy.path) | head_options(spec.model)
    options |= experts_options(spec, cpu=memory is None)
    if memory is None:
        check_head_size(policy, SHARED)
        check_cpu_workers(spec)
        given = spec.generator.engine_arguments.get("max-model-len")
        served = given if isinstance(given, int) else longest(spec)
        options |= cpu_options(served, spec.generator.tensor_parallel_size)
    else:
        options |= part_of_gpu(config, memory)
    if pods > 1:
        options |= group_options(rank, pods, master)
    options |= dict(spec.generator.engine_arguments)
    return [text for name, value in options.items() for text in option(name, value)]


def check_cpu_workers(spec: Spec) -> None:
    """Raises InvalidJob for pipeline parallelism on CPUs, with which vLLM may start, but crashes at the first request:
    the later stages' input buffers are allocated by a warm-up that eager CPUs skip."""
    section = spec.generator
    if (stages := section.engine_arguments.get(PIPELINE, 1)) != 1:
        where = f"spec.generator.engineArguments.{PIPELINE}"
        message = (
            f"vLLM on CPUs has no pipelines; use spec.generator.tensorParallelSize, or GPUs; got {stages}"
        )
        raise InvalidJob([Problem(where, message)])
    if section.pods_per_replica > 1 and (workers := gpus(section)[0]) != section.pods_per_replica:
        message = f"vLLM on CPUs runs one worker in each pod of several; use {workers}"
        raise InvalidJob(
            [Problem("spec.generator.podsPerReplica", f"{message}; got {section.pods_per_replica}")]
        )


def part_of_gpu(config: RunConfig, memory: float) -> dict[str, JsonValue]:
    """Memory options that leave room for the new weights of a broadcast, and on shared GPUs for the other processes,
    unless the manifest sets them or the policy's size is unknown. Raises InvalidJob if vLLM would start and then lack
    that room."""
    spec = config.spec
    if config.shared_gpus:
        sizes = job_sizes(spec)
        if wrong := problems(spec, sizes, memory, config.shared_gpu_count):
            raise InvalidJob(wrong)
        options = generator_options(spec, sizes, memory, config.shared_gpu_count)
        return options | (SLEEP_OPTIONS if config.takes_turns else {})
    sizes = Sizes.of(spec, model_sizes(spec))
    serving = Serving.of(spec, sizes)
    if serving is None:
        if sizes.policy is None and left_open(spec):
            log.warning(
                "without spec.model.parameters vLLM may leave too little GPU memory for new weights; set it"
            )
        return {}
    if wrong := list(serving.problems(memory)):
        raise InvalidJob(wrong)
    return {UTILIZATION: serving.utilization(memory)} if serving.left_open else {}


def begin_turn(config: RunConfig) -> dict[str, str]:
    """Waits until no trainer's rank computes on this process's GPUs; environment with which the server, once it sleeps,
    lets them go on."""
    turns = GpuTurns(Path(config.workdir, FOLDER), own_gpus(os.environ))
    turns.begin(config.spec.generator.startup_timeout_seconds)
    return turns.pass_on()


def run(env: ProcessEnv) -> None:
    policy = model_source(env.config, "policy")
    if wrong := engine_problems(env.config.spec, Role.GENERATOR, policy.where, policy.path):
        raise InvalidJob(wrong)
    if Path(policy.path).is_dir() and (what := directory_problem(Path(policy.path))):
        raise InvalidJob([Problem(policy.where, f"{what}; got {policy.path!r}")])
    cpu = on_cpu()
    memory = None if cpu else gpu_memory()
    if not cpu and (reason := rdma.over_tcp(env.config, Role.GENERATOR, os.environ)) is not None:
        log.warning("%s", reason)
    several = pods_each(env.config.spec, Role.GENERATOR) > 1
    own = group_environment(env.host, interface(env.host)) if several else {}
    if env.config.takes_turns:
        own |= begin_turn(env.config)
    module = FOLLOWER if env.rank else SERVER
    options = arguments(env.config, listen_host(env.host), env.port, memory, rank=env.rank, master=env.master)
    sys.stderr.flush()
    # Exec replaces this process: signals and the exit code are the server's own.
    environ = engine_environment(own | os.environ, cpu)
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *options], environ)


if __name__ == "__main__":
    run_role(run)
