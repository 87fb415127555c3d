"""The reference role: log-probabilities of the frozen policy."""

from functools import partial

from rlhf_api.roles import Role
from rlhf_api.run import ProcessEnv

from ..batches import response_logprobs
from ..comms.ranks import Message
from ..models.inference import infer
from ..models.load import check_fit, load_policy, load_tokenizer
from ..models.loading import device, loading, torch_dtype
from ..process import run_role
from ..scoring.messages import LOGPROBS_ROUTE, unpack
from ..scoring.server import application, serve
from ..settings import listen_host, longest, policy_path, tokenizer_path


def run(env: ProcessEnv) -> None:
    config = env.config
    spec, path = config.spec, config.spec.model.reference or policy_path(config)
    where = "spec.model.reference" if spec.model.reference else "spec.model.policy"
    tokenizer = loading("spec.model.tokenizer", lambda: load_tokenizer(tokenizer_path(config)))
    model = loading(where, lambda: load_policy(path, torch_dtype(config.dtype(Role.REFERENCE))))
    loading(where, lambda: check_fit(model.config, tokenizer, longest(spec)))
    model.to(device()).eval()
    read = partial(response_logprobs, temperature=spec.sampling.temperature)

    def answer(message: Message) -> Message:
        sequences = unpack(message)
        logprobs = infer(
            model,
            sequences,
            read,
            sequences.response_lengths,
            token_budget=spec.trainer.micro_batch_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
        return {"logprobs": logprobs}, {}

    serve(application(LOGPROBS_ROUTE, answer, env.token), listen_host(env.host), env.port)


if __name__ == "__main__":
    run_role(run)
