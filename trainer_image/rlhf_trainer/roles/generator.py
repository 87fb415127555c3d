"""The generator role: becomes the stock vLLM server, with our weight-transfer engine as a plugin."""

import json
import os
import sys
from collections.abc import Mapping

import torch
from transformers import AutoConfig

from rlhf_api.roles import Role
from rlhf_api.run import RunConfig, Surroundings

from ..policy.load import check_fit, load_tokenizer
from .entry import run_role
from .models import listen_host, loading, longest, policy_path, tokenizer_path

EXTENSION = "rlhf_trainer.weights.extension.WeightStatus"
GUARD = "rlhf_trainer.weights.guard.TokenGuard"


def arguments(config: RunConfig, host: str, port: int) -> list[str]:
    """The options of `vllm serve`."""
    spec = config.spec
    options = {
        "model": policy_path(config),
        "tokenizer": tokenizer_path(config),
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
        "weight-transfer-config": json.dumps({"backend": "rlhf"}),
        "worker-extension-cls": EXTENSION,
        "middleware": GUARD,
    }
    options |= dict(spec.generator.engine_arguments)
    return [text for name, value in options.items() for text in option(name, value)]


def option(name: str, value: object) -> list[str]:
    """One option as vLLM's command line takes it: flags for booleans, JSON for objects."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict | list) else str(value)]


def engine_environment(environ: Mapping[str, str], cuda: bool) -> dict[str, str]:
    """vLLM's settings by environment; what the user set stands."""
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if not cuda:
        settings |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    return {**settings, **environ, "VLLM_SERVER_DEV_MODE": "1"}


def run(around: Surroundings) -> None:
    config = around.config
    tokenizer = loading("spec.model.tokenizer", lambda: load_tokenizer(tokenizer_path(config)))
    path, fits = policy_path(config), longest(config.spec)
    loading("spec.model.policy", lambda: check_fit(AutoConfig.from_pretrained(path), tokenizer, fits))
    serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command = serve + arguments(config, listen_host(around.host), around.port)
    if not torch.cuda.is_available():
        command.append("--enforce-eager")
    sys.stderr.flush()
    # The server replaces this process: signals and the exit code are its own.
    os.execve(sys.executable, command, engine_environment(os.environ, torch.cuda.is_available()))


if __name__ == "__main__":
    run_role(run)
