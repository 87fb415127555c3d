"""The reward role: scores answers for training, and judges them for evaluation."""

import sys
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.roles import Role
from rlhf_api.run import ProcessEnv, RunConfig

from ..comms.ranks import Message
from ..maths.rewards import scaled_scores
from ..models.loading import load_job_tokenizer, load_model, on_device
from ..process import run_role
from ..scoring.messages import SCORE_ROUTE, rows_of, unpack
from ..scoring.rewards import FunctionScorer, ModelScorer, Score, TokenScorer, import_function, weighted
from ..scoring.server import application, serve
from ..settings import listen_host


def scorers(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> list[tuple[float, Score]]:
    """What the manifest scores answers by, with weights."""
    spec, found = config.spec, list[tuple[float, Score]]()
    if spec.model.reward is not None and spec.reward.model_weight != 0:
        own = load_job_tokenizer(config, "reward")
        model = load_model(
            config, "reward", Role.REWARD, own, "token_score" if spec.reward.fine_grained else None
        )
        on_device(model)
        budget = spec.trainer.micro_batch_tokens
        scorer: Score = ModelScorer(model, tokenizer, own, budget)
        if spec.reward.fine_grained:
            if own.get_vocab() != tokenizer.get_vocab():
                message = (
                    "the model has another vocabulary than the policy, so its tokens are not the policy's"
                )
                raise InvalidJob([Problem("spec.reward.fineGrained", f"{message}; got true")])
            scorer = TokenScorer(model, budget, tokenizer.pad_token_id)
        found.append((spec.reward.model_weight, scorer))
    for i, entry in enumerate(spec.reward.functions):
        where = f"spec.reward.functions[{i}].function"
        found.append((entry.weight, FunctionScorer(where, import_function(entry.function, where), tokenizer)))
    return found


def run(env: ProcessEnv) -> None:
    config, spec = env.config, env.config.spec
    sys.path.insert(0, str(Path.cwd()))  # where the user's modules are
    tokenizer = load_job_tokenizer(config)
    rewards = scorers(config, tokenizer)
    judges: list[tuple[float, Score]] = []
    if spec.evaluation is not None:
        where = "spec.evaluation.function"
        judge = import_function(spec.evaluation.function, where)
        judges = [(1.0, FunctionScorer(where, judge, tokenizer))]

    def answer(message: Message) -> Message:
        sequences, rows = unpack(message), rows_of(message)
        if message[1].get("judge"):
            return {"scores": weighted(judges, sequences, rows)}, {}
        section, total = spec.reward, weighted(rewards, sequences, rows)
        name = "token_scores" if section.fine_grained else "scores"
        return {name: scaled_scores(total, bias=section.bias, scale=section.scale, clip=section.clip)}, {}

    serve(application(SCORE_ROUTE, answer, env.token), listen_host(env.host), env.port)


if __name__ == "__main__":
    run_role(run)
