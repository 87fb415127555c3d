"""The reward role: scores responses for training and evaluation."""

import asyncio
import math
from collections.abc import Awaitable, Iterable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_api.contract.run import ProcessEnv, RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import Head
from rlhf_api.host.event_loop import EventLoop
from rlhf_api.host.reaper import become_subreaper
from rlhf_api.roles import Role
from rlhf_api.sections.evaluation import EvaluationMetric

from ..data.steps import check_separator
from ..engines.vllm.frozen import FrozenModel
from ..models.forward.inference import served
from ..models.pretrained import architectures
from ..models.pretrained.job_models import (
    check_served,
    load_frozen,
    load_job_tokenizer,
    load_own_tokenizer,
    on_device,
)
from ..models.pretrained.load import padding_id, positions_of
from ..process.addresses import listen_host
from ..process.role import run_role
from ..process.settings import ModelSource, frozen_source, longest
from ..ranks.ranks import Message
from ..scoring import kinds
from ..scoring.messages import SCORE_ROUTE, Part, ScoreReport, judge_part, rows_of, unpack
from ..scoring.rewards import (
    Functions,
    ModelScore,
    ModelScorer,
    TokenScorer,
    WeightedModel,
    WeightedModels,
    forward_scores,
)
from ..scoring.server import application, no_trouble
from ..scoring.steps import StepScorer
from ..transport.serving import serve
from ..transport.wire import WireError

SHARE_OF_TIME = 0.9
"""Share of a message's deadline for a response's calls; a response without a score by then has failed, and the trainer
gets the reason.
"""


def model_scorer(config: RunConfig, tokenizer: PreTrainedTokenizerBase, source: ModelSource) -> ModelScore:
    """A reward model, run by transformers."""
    spec, own = config.spec, load_own_tokenizer(source)
    fine_grained, how = spec.reward.fine_grained, spec.reward.step_scores
    head: Head | None = "token_score" if fine_grained or how else None
    model = load_frozen(config, Role.REWARD, own, head, source)
    on_device(model)
    budget = spec.reward.micro_batch(spec.trainer)
    if not fine_grained and how is None:
        scores = forward_scores(model, budget, padding_id(own))
        positions, variables = positions_of(model.config), spec.data.chat_template_kwargs
        return ModelScorer(scores, positions, tokenizer, own, spec.sampling.stop, variables)
    if own.get_vocab() != tokenizer.get_vocab():
        field, value = ("fineGrained", "true") if how is None else ("stepScores", repr(how))
        message = f"{source.where} has another vocabulary than the policy, so its tokens are not the policy's"
        raise InvalidJob([Problem(f"spec.reward.{field}", f"{message}; got {value}")])
    forward = served(model, spec.trainer, budget, padding_id(tokenizer))
    if how is None:
        return TokenScorer(forward)
    check_separator(tokenizer, spec.data.step_separator)
    return StepScorer(forward, tokenizer, spec.data.step_separator, how, spec.sampling.stop)


def vllm_scorer(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[FrozenModel, ModelScore]:
    """The reward model, run by vLLM on sequences of up to the job's longest; with a vocabulary of its own, of up to its
    number of positions."""
    own, length = load_own_tokenizer(frozen_source(config, Role.REWARD)), longest(config.spec)
    positions = check_served(config, Role.REWARD, own, length)
    if own.get_vocab() != tokenizer.get_vocab():
        length = positions or length
    engine = FrozenModel.of(config, Role.REWARD, length)
    stop, variables = config.spec.sampling.stop, config.spec.data.chat_template_kwargs
    return engine, ModelScorer(engine.scores, length, tokenizer, own, stop, variables)


def reward_models(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[FrozenModel | None, WeightedModels | None]:
    """The reward models if the job has any: under vLLM the engine of the only one, and what scores by them."""
    spec, engine, weighted = config.spec, None, list[WeightedModel]()
    for model in spec.reward_models:
        if spec.reward.engine == "vllm":
            engine, scorer = vllm_scorer(config, tokenizer)
        else:
            scorer = model_scorer(config, tokenizer, ModelSource(model.where, model.path))
        weighted.append(WeightedModel(model.weight, scorer, spec.reward.fine_grained, model.name))
    return engine, WeightedModels(weighted) if weighted else None


def metric_models(
    metrics: Iterable[EvaluationMetric], models: WeightedModels | None
) -> dict[str, WeightedModel]:
    """The reward model of each metric that has one, by the metric's part of a message."""
    named = {model.name: model for model in models.models} if models else {}
    return {judge_part(each.metric): named[each.model] for each in metrics if each.model is not None}


def whole_scores(report: ScoreReport) -> Tensor:
    """The scores of one reward before its weight, float64 [N], NaN for none; of tokens their sum."""
    (part,) = report.parts.values()
    return torch.tensor([math.nan if score is None else score for score in part.scores], dtype=torch.float64)


def run(env: ProcessEnv) -> None:
    config, spec, section = env.config, env.config.spec, env.config.spec.reward
    architectures.register(spec.model.architectures)
    tokenizer = load_job_tokenizer(config)
    engine, models = reward_models(config, tokenizer)
    become_subreaper()  # of what functions and programs leave behind, for `process_groups.end`
    # Its thread lives as long as the role: the kernel ends the functions' processes with the thread that started them.
    loop = EventLoop("functions")
    seconds, stop = SHARE_OF_TIME * section.timeout_seconds, spec.sampling.stop
    functions = [
        loop.run(kinds.start(f"spec.reward.functions[{i}]", entry, entry.weight))
        for i, entry in enumerate(section.functions)
    ]
    fine, metrics = section.fine_grained, spec.evaluation.placed_metrics if spec.evaluation else {}
    waiting: dict[str, Functions] = {
        Part.FUNCTIONS: Functions(tokenizer, seconds, functions, fine_grained=fine, stop=stop)
    }
    for where, metric in metrics.items():
        if metric.model is None:
            judge = loop.run(kinds.start(where, metric))
            waiting[judge_part(metric.metric)] = Functions(tokenizer, seconds, [judge], stop=stop)
    computing: dict[str, WeightedModel | WeightedModels] = {**metric_models(metrics.values(), models)}
    computing |= {Part.MODEL: models} if models else {}

    def replied(part: str, totals: Tensor, report: ScoreReport) -> Message:
        header = report.model_dump(mode="json")
        if part not in (Part.FUNCTIONS, Part.MODEL):
            return {"scores": whole_scores(report)}, header
        return {"token_scores" if fine else "scores": totals}, header

    def waits(message: Message) -> Awaitable[Message] | None:
        part = message[1].get("part")
        if part not in waiting:
            return None

        async def scored() -> Message:
            return replied(part, *await waiting[part].score(unpack(message), rows_of(message)))

        return asyncio.wrap_future(loop.start(scored()))

    def compute(message: Message) -> Message:
        part = message[1].get("part")
        if part not in computing:
            raise WireError(f"nothing here scores the part {part!r}")
        return replied(part, *computing[part].score(unpack(message), rows_of(message)))

    trouble = engine.restart_reason if engine else no_trouble
    app = application(
        SCORE_ROUTE, compute, env.prover(), trouble, waits=waits, deadline=section.timeout_seconds
    )
    serve(app, listen_host(env.host), env.port)
    if engine:
        engine.close()


if __name__ == "__main__":
    run_role(run)
