"""The reference role: log-probabilities of the frozen policy, computed by transformers or by vLLM."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from rlhf_api.algorithms import teacher_top_k
from rlhf_api.contract.run import ProcessEnv, RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import REFERENCE, VLLM_OUTPUTS, Infer
from rlhf_api.roles import Role
from rlhf_api.rules.own_algorithm import resolve

from ..engines.vllm.frozen import FrozenModel
from ..models.forward.inference import infer, served
from ..models.pretrained import architectures
from ..models.pretrained.job_models import (
    check_reference_tokens,
    check_served,
    load_frozen,
    load_job_tokenizer,
    on_device,
)
from ..models.pretrained.load import padding_id
from ..ops import output_fn
from ..process.addresses import listen_host
from ..process.role import run_role
from ..process.settings import longest
from ..ranks.ranks import Message
from ..scoring.messages import LOGPROBS_ROUTE, unpack
from ..scoring.server import application, no_trouble
from ..tensors.records import Sequences
from ..transport.serving import serve

Logprobs = Callable[[Sequences], Tensor]
"""Log-probabilities of the response tokens, float32 [A], or of the most probable ones, see `top_tokens`."""


def by_transformers(config: RunConfig, output: str) -> Logprobs:
    spec, tokenizer = config.spec, load_job_tokenizer(config)
    model = load_frozen(config, Role.REFERENCE, tokenizer)
    on_device(model)
    budget, float32 = spec.reference.micro_batch(spec.trainer), spec.model.float32_head
    forward = served(model, spec.trainer, budget, padding_id(tokenizer), float32_head=float32)
    read = output_fn(output, spec)
    return lambda sequences: infer(forward, sequences, read, sequences.response_lengths)


def by_vllm(config: RunConfig, output: str) -> FrozenModel:
    """The model under vLLM. Raises InvalidJob if vLLM cannot compute this output of it."""
    if output not in VLLM_OUTPUTS:
        message = (
            f"vLLM gives {' and '.join(VLLM_OUTPUTS)}, and the graph asks for {output}; use transformers"
        )
        raise InvalidJob([Problem("spec.reference.engine", message)])
    # vLLM reserves a position for one generated token after the longest sequence, which is discarded.
    length = longest(config.spec) + 1
    check_served(config, Role.REFERENCE, load_job_tokenizer(config), length)
    temperature = 1.0 if output == "logprobs_untempered" else config.spec.sampling.temperature
    return FrozenModel.of(config, Role.REFERENCE, length, temperature, teacher_top_k(config.spec))


def run(env: ProcessEnv) -> None:
    config = env.config.view_of(Role.REFERENCE, env.index)
    architectures.register(config.spec.model.architectures)
    nodes = resolve(config.spec).graph.prepare
    check_reference_tokens(config)
    output = next(n.output for n in nodes if isinstance(n, Infer) and n.model == REFERENCE)
    engine = by_vllm(config, output) if config.spec.reference.engine == "vllm" else None
    array, count = (
        ("top_logprobs", teacher_top_k(config.spec)) if output == "top_logprobs" else ("logprobs", 0)
    )
    logprobs = partial(engine.logprobs, count=count) if engine else by_transformers(config, output)

    def answer(message: Message) -> Message:
        return {array: logprobs(unpack(message))}, {}

    trouble, deadline = engine.restart_reason if engine else no_trouble, config.spec.reference.timeout_seconds
    app = application(LOGPROBS_ROUTE, answer, env.prover(), trouble, deadline=deadline)
    serve(app, listen_host(env.host), env.port)
    if engine:
        engine.close()


if __name__ == "__main__":
    run_role(run)
