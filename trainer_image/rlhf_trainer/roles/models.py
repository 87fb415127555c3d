"""Loading a role's model with the manifest's field in the message when that fails."""

from collections.abc import Callable
from typing import TypeVar

import torch

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.run import RunConfig
from rlhf_api.spec import Spec

Loaded = TypeVar("Loaded")


def loading(where: str, load: Callable[[], Loaded]) -> Loaded:
    """`load()`; a ValueError becomes an InvalidJob that names the field `where`."""
    try:
        return load()
    except ValueError as error:
        raise InvalidJob([Problem(where, str(error))]) from error


def torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def policy_path(config: RunConfig) -> str:
    """Where the initial policy is: given, or made in the work directory."""
    return config.spec.model.policy or f"{config.workdir}/initial"


def tokenizer_path(config: RunConfig) -> str:
    return config.spec.model.tokenizer or policy_path(config)


def longest(spec: Spec) -> int:
    """The most tokens that a sequence of this job can have."""
    answer = spec.sampling.max_new_tokens if spec.algorithm == "ppo" else spec.data.max_answer_length
    return spec.data.max_prompt_length + answer


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def listen_host(host: str) -> str:
    """What to bind to: loopback where only this machine connects, every interface of a pod otherwise."""
    return host if host.startswith("127.") else "0.0.0.0"
