"""What roles derive from the manifest: where models are, how long sequences get, where to listen. No torch."""

from rlhf_api.algorithms import graph_of
from rlhf_api.run import RunConfig
from rlhf_api.spec import Spec


def policy_path(config: RunConfig) -> str:
    """Where the initial policy is: given, or made in the work directory."""
    return config.spec.model.policy or f"{config.workdir}/initial"


def tokenizer_path(config: RunConfig) -> str:
    return config.spec.model.tokenizer or policy_path(config)


def longest(spec: Spec) -> int:
    """The most tokens that a sequence of this job can have."""
    answer = spec.sampling.max_new_tokens if graph_of(spec).generates else spec.data.max_answer_length
    return spec.data.max_prompt_length + answer


def listen_host(host: str) -> str:
    """What to bind to: loopback where only this machine connects, every interface of a pod otherwise."""
    if host.startswith("127."):
        return host
    return "::" if ":" in host else "0.0.0.0"
