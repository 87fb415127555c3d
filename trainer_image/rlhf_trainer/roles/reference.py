"""The reference role: log-probabilities of the frozen policy."""

from rlhf_api.algorithms.resolve import resolve
from rlhf_api.graph import REFERENCE, Infer
from rlhf_api.roles import Role
from rlhf_api.run import ProcessEnv

from ..comms.ranks import Message
from ..models.inference import infer, served
from ..models.loading import load_job_tokenizer, load_model, on_device
from ..ops import output_fn
from ..process import run_role
from ..scoring.messages import LOGPROBS_ROUTE, unpack
from ..scoring.server import application, serve
from ..settings import listen_host


def run(env: ProcessEnv) -> None:
    config, spec = env.config, env.config.spec
    tokenizer = load_job_tokenizer(config)
    model = load_model(config, "reference", Role.REFERENCE, tokenizer)
    on_device(model)
    forward = served(model, spec.trainer, spec.reference.micro_batch(spec.trainer), tokenizer.pad_token_id)
    nodes = (
        node for node in resolve(spec).graph.prepare if isinstance(node, Infer) and node.model == REFERENCE
    )
    read = output_fn(next(node.output for node in nodes), spec)

    def answer(message: Message) -> Message:
        sequences = unpack(message)
        logprobs = infer(forward, sequences, read, sequences.response_lengths)
        return {"logprobs": logprobs}, {}

    serve(application(LOGPROBS_ROUTE, answer, env.token), listen_host(env.host), env.port)


if __name__ == "__main__":
    run_role(run)
