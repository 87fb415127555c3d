"""Options and environment with which vLLM starts, on GPUs or a CPU. Heavy imports, such as torch, would add to vLLM's
start-up time.
"""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.serving import REFERENCE_SHARE, UTILIZATION
from rlhf_api.estimate.sharing import divide
from rlhf_api.host.foreign_files import READ_ERRORS, read_json
from rlhf_api.host.model_directory import takes_pickles
from rlhf_api.roles import Role
from rlhf_api.sections.model import INTERLEAVED, VISION, Model
from rlhf_api.spec import Spec

from ....process.addresses import interface, is_loopback
from ....process.settings import ModelSource
from ....process.sizes import job_sizes
from .routed import WORKER

CPU_OPTIONS: dict[str, JsonValue] = {
    "enforce-eager": True,
    "kv-cache-memory-bytes": 256 << 20,
    "enable-chunked-prefill": False,
}
"""vLLM's options on CPUs. By its defaults it would compile for half a minute and reserve half of the machine's memory
as cache; chunked prefill of a seeded prompt crashes its engine, as torch's CPU generators have no offset to rewind."""
CPU_BATCH_TOKENS = 2048
"""Largest number of tokens per engine step on a CPU, unless a sequence may be longer."""
SHARED = "`generator.sharedWithTrainer: true`"
"""Setting with which the trainer generates, where vLLM cannot."""
SHAPE_KEYS = (("hidden_size", "n_embd"), ("num_attention_heads", "n_head"))
PLACES = (
    "vLLM would place images otherwise than Transformers does: set mrope_interleaved to true in the rope_parameters of "
    "its config.json"
)
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes of vLLM 0.32's attention on CPUs; it starts with any other one, and crashes at the first request."""


SLEEP_OPTIONS: dict[str, JsonValue] = {
    "enable-sleep-mode": True,
    "worker-cls": "rlhf_trainer.engines.vllm.serve.sleeping_worker.SleepingWorker",
}
"""Has an engine give its memory back in the turns of a trainer on its GPU."""


def cpu_options(longest: int, tensor_parallel_size: int) -> dict[str, JsonValue]:
    """Engine options on a CPU, for sequences of up to `longest` tokens."""
    options = CPU_OPTIONS | {"max-num-batched-tokens": max(CPU_BATCH_TOKENS, longest)}
    return options | ({"distributed-executor-backend": "uni"} if tensor_parallel_size == 1 else {})


FROZEN_OPTIONS: dict[str, JsonValue] = {
    "skip-tokenizer-init": True,
    "generation-config": "vllm",
    "enable-prefix-caching": False,
    "disable-log-stats": True,
}
"""Token ids in and out; no prefix caching, since every token's output is needed."""
REFERENCE_ON_GPU: dict[str, JsonValue] = {UTILIZATION: REFERENCE_SHARE, "max-num-batched-tokens": 2048}
"""Prompt log-probabilities need the logits of all tokens of a step, in the model's dtype and twice in float32, for
which vLLM reserves no memory: 3 GB for 2,048 tokens and a vocabulary of 150,000."""


def head_options(model: Model) -> dict[str, JsonValue]:
    """Has vLLM compute logits in float32 where the job does, see `maths.logprobs.head_logits`."""
    return {"hf-overrides": {"head_dtype": "float32"}} if model.float32_head else {}


def experts_options(spec: Spec, *, cpu: bool) -> dict[str, JsonValue]:
    """Has vLLM return the experts that its routers chose, where the trainer replays them."""
    if spec.experts.replay != "rollout":
        return {}
    return {"enable-return-routed-experts": True} | ({"worker-cls": WORKER} if cpu else {})


def weight_options(path: str) -> dict[str, JsonValue]:
    """Has vLLM load no pickled weights of a hub's model; those in a directory are refused before."""
    return {} if takes_pickles() or Path(path).is_dir() else {"load-format": "safetensors"}


def instead_of(role: Role) -> str:
    """Setting that runs a role's frozen model without vLLM, where vLLM cannot."""
    return f"`{role.value}.engine: transformers`"


def frozen_options(
    config: RunConfig,
    role: Role,
    model: ModelSource,
    longest: int,
    *,
    cpu: bool,
    shared_memory: float | None = None,
) -> dict[str, JsonValue]:
    """Options with which vLLM runs a role's frozen model on sequences of up to `longest` tokens; the manifest's
    `engineArguments` come last. `shared_memory`: bytes of each of its GPUs, if it shares them. Raises InvalidJob for
    models that vLLM does not run."""
    section = config.spec.model_server(role)
    options = (
        FROZEN_OPTIONS
        | weight_options(model.path)
        | {
            "model": model.path,
            "dtype": config.dtype(role),
            "max-model-len": longest,
            "tensor-parallel-size": section.tensor_parallel_size,
        }
    )
    if cpu:
        check_head_size(model, instead_of(role))
        options |= cpu_options(longest, section.tensor_parallel_size)
    elif role.row.work == "infer":
        options |= REFERENCE_ON_GPU
    if role.row.work == "infer":
        options |= head_options(config.spec.model)
    if shared_memory is not None:
        options |= divide.frozen_options(config.spec, role, job_sizes(config.spec), shared_memory)
    if role.row.work == "score":
        options |= {"runner": "pooling", "convert": "classify"}
    return options | dict(section.engine_arguments)


def check_head_size(model: ModelSource, instead: str) -> None:
    """Raises InvalidJob where the attention heads of a model in a directory have a size that vLLM on CPUs lacks.
    Accepts models whose config.json does not tell: hub names, several towers, compressed attention."""
    try:
        config = read_json(Path(model.path, "config.json"))
        if config.get("model_type") in VISION:
            config = config["text_config"]
        if "kv_lora_rank" in config or "text_config" in config:
            return
        width, heads = (config.get(new) or config[old] for new, old in SHAPE_KEYS)
        size = config.get("head_dim") or width // heads
    except READ_ERRORS:
        return  # reported when the model is loaded
    if size not in CPU_HEAD_SIZES:
        message = (
            f"vLLM on CPUs has no attention for heads of {size}, only for {', '.join(map(str, CPU_HEAD_SIZES))}; "
            f"use another model, GPUs, or {instead}"
        )
        raise InvalidJob([Problem(model.where, message)])


def places_images(config: Any) -> bool:
    """True unless a model's configuration is one whose images vLLM places otherwise than Transformers."""
    return config["model_type"] not in VISION or bool(
        config["text_config"]["rope_parameters"].get(INTERLEAVED)
    )


def check_places(model: ModelSource) -> None:
    """Raises InvalidJob for a model in a directory with which vLLM and the trainer would disagree on images."""
    try:
        agrees = places_images(read_json(Path(model.path, "config.json")))
    except READ_ERRORS:
        return  # reported when the model is loaded
    if not agrees:
        raise InvalidJob([Problem(model.where, PLACES)])


def option(name: str, value: object) -> list[str]:
    """One command-line option of vLLM: flags for booleans, JSON for objects."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict | list) else str(value)]


def engine_environment(environ: Mapping[str, str], cpu: bool) -> dict[str, str]:
    """Environment variables of vLLM; the user's own values win."""
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    # Triton's own default. Without it vLLM compiles its kernels, for 20 s, in the first two starts of each model.
    settings["TRITON_CACHE_DIR"] = str(Path(environ.get("HOME") or Path.home(), ".triton", "cache"))
    if cpu:
        # Without the first, the CPU platform starts a worker process beside the engine's: 10 s and 600 MB more.
        # Without the second, its sampler compiles C++ at the first request, with a compiler that may be missing.
        settings |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    host = environ.get("RLHF_HOST", "")
    if is_loopback(host) and (name := interface(host)):
        # By default gloo would listen at the host name's address, which others may reach.
        settings |= {"VLLM_HOST_IP": host, "GLOO_SOCKET_IFNAME": name}
    # Of workers beside the engine: one that is forked would not call our plugin again (plugin.py).
    needed = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}
    needed["VLLM_API_KEY"] = ""  # beside the job's token it would keep the probes' requests out
    return {**settings, **environ, **needed, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}


def group_options(rank: int, pods: int, master: str) -> dict[str, JsonValue]:
    """Options of one pod of a multi-pod generator; the pods connect at `master`, host and port of rank 0. Their workers
    are one group of torch.distributed."""
    host, _, port = master.rpartition(":")
    return {
        "distributed-executor-backend": "mp",
        "nnodes": pods,
        "node-rank": rank,
        "master-addr": host,
        "master-port": int(port),
    }


def group_environment(host: str, interface: str | None) -> dict[str, str]:
    """`host`: this process's address, on this network interface. By default vLLM would use the address of the default
    route, and gloo that of the host name. On a CPU, all would bind their threads to the same cores."""
    gloo = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    return {"VLLM_HOST_IP": host, "VLLM_CPU_OMP_THREADS_BIND": "nobind", **gloo}


def on_cpu() -> bool:
    """True if the installed vLLM is the build for CPUs."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True
