"""The reward role: scores responses for training and evaluation."""

import asyncio
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.rewards import RewardFunction
from rlhf_api.roles import Role
from rlhf_api.run import ProcessEnv, RunConfig

from ..comms.ranks import Message
from ..engines.vllm.frozen import FrozenModel
from ..maths.rewards import scaled_scores
from ..models import architectures
from ..models.inference import served
from ..models.load import positions_of
from ..models.loading import check_served, load_frozen, load_job_tokenizer, on_device
from ..process import run_role
from ..scoring import kinds, process_groups
from ..scoring.messages import SCORE_ROUTE, rows_of, unpack
from ..scoring.rewards import ModelScore, ModelScorer, Rewards, TokenScorer, forward_scores
from ..scoring.server import application, serve
from ..settings import listen_host, longest

T = TypeVar("T")

SHARE_OF_TIME = 0.9
"""Share of a chunk's deadline for scoring; responses without a score by then have failed, and the trainer gets the
reason.
"""


def model_scorer(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> ModelScore:
    """The reward model, run by transformers."""
    spec, own = config.spec, load_job_tokenizer(config, "reward")
    model = load_frozen(config, Role.REWARD, own, "token_score" if spec.reward.fine_grained else None)
    on_device(model)
    budget = spec.reward.micro_batch(spec.trainer)
    if not spec.reward.fine_grained:
        scores = forward_scores(model, budget, own.pad_token_id or 0)
        return ModelScorer(scores, positions_of(model.config), tokenizer, own, spec.sampling.stop)
    if own.get_vocab() != tokenizer.get_vocab():
        message = "the model has another vocabulary than the policy, so its tokens are not the policy's"
        raise InvalidJob([Problem("spec.reward.fineGrained", f"{message}; got true")])
    return TokenScorer(served(model, spec.trainer, budget, tokenizer.pad_token_id))


def vllm_scorer(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[FrozenModel, ModelScore]:
    """The reward model, run by vLLM on sequences of up to the job's longest; with a vocabulary of its own, of up to its
    number of positions."""
    own, length = load_job_tokenizer(config, "reward"), longest(config.spec)
    positions = check_served(config, Role.REWARD, own, length)
    if own.get_vocab() != tokenizer.get_vocab():
        length = positions or length
    engine = FrozenModel.of(config, Role.REWARD, length)
    return engine, ModelScorer(engine.scores, length, tokenizer, own, config.spec.sampling.stop)


def run(env: ProcessEnv) -> None:
    config, spec = env.config, env.config.spec
    architectures.register(spec.model.architectures)
    tokenizer = load_job_tokenizer(config)
    engine: FrozenModel | None = None
    model: tuple[float, ModelScore] | None = None
    if spec.model.reward is not None and spec.reward.model_weight != 0:
        if spec.reward.engine == "vllm":
            engine, scorer = vllm_scorer(config, tokenizer)
        else:
            scorer = model_scorer(config, tokenizer)
        model = spec.reward.model_weight, scorer
    process_groups.adopt_orphans()
    # Functions run on an event loop in a thread that lives as long as the role, since the kernel ends their processes
    # with it.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="functions", daemon=True).start()

    def wait(coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    entries = [(f"spec.reward.functions[{i}]", entry) for i, entry in enumerate(spec.reward.functions)]
    functions = [wait(kinds.start(where, entry)) for where, entry in entries]
    seconds = SHARE_OF_TIME * spec.reward.timeout_seconds
    stop, fine = spec.sampling.stop, spec.reward.fine_grained
    rewards = Rewards(tokenizer, seconds, functions, model, fine_grained=fine, stop=stop)
    judges: Rewards | None = None
    if spec.evaluation is not None:
        judge = RewardFunction.model_validate({"name": "evaluation", "function": spec.evaluation.function})
        judges = Rewards(tokenizer, seconds, [wait(kinds.start("spec.evaluation", judge))], stop=stop)

    def answer(message: Message) -> Message:
        sequences, rows = unpack(message), rows_of(message)
        if judges is not None and message[1].get("judge"):
            scores, report = wait(judges.score(sequences, rows))
            return {"scores": scores}, report.model_dump(mode="json")
        section = spec.reward
        total, report = wait(rewards.score(sequences, rows))
        name = "token_scores" if section.fine_grained else "scores"
        scores = scaled_scores(total, bias=section.bias, scale=section.scale, clip=section.clip)
        return {name: scores}, report.model_dump(mode="json")

    longest = spec.reward.timeout_seconds
    listening = partial(application, SCORE_ROUTE, answer, env.token, longest=longest)
    serve(listening(engine.trouble) if engine else listening(), listen_host(env.host), env.port)
    if engine:
        engine.close()


if __name__ == "__main__":
    run_role(run)
