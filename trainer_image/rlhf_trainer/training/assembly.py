"""What a manifest's models and tasks are made of: loaded, checked, put under DeepSpeed, connected."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from torch import distributed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_api.roles import Role
from rlhf_api.rows import Row
from rlhf_api.run import RunConfig
from rlhf_api.spec import CreateModel

from .. import faults
from ..comms.ranks import Ranks
from ..context import TrainerContext
from ..generation.fleet import Fleet
from ..generation.vllm import VllmClient
from ..models.load import create_policy, create_tokenizer, load_tokenizer
from ..models.loading import Head, load_job_tokenizer, load_model, loading
from ..models.trained_model import TrainedModel
from ..scoring.client import Scorer
from ..scoring.messages import LOGPROBS_ROUTE, SCORE_ROUTE
from ..weights.broadcaster import WeightSync
from .experience import Scorers
from .loop import Task
from .ppo import PPO
from .supervised import KINDS, Supervised


def prepare_model(config: RunConfig, ranks: Ranks, rows: Sequence[Row]) -> PreTrainedTokenizerBase:
    """The tokenizer; where the job makes its own model, rank 0 makes both first."""
    section, initial = config.spec.model.create, Path(config.workdir, "initial")
    if section is not None and ranks.first and not (config.resume and initial.exists()):
        fields = ("prompt", "answer", "pos_answers", "neg_answers")
        values = [value for row in rows for field in fields if (value := getattr(row, field, None))]
        texts = [text for value in values for text in ([value] if isinstance(value, str) else value)]
        shutil.rmtree(initial, ignore_errors=True)
        loading("spec.model.create", lambda: create(initial, section, texts, config.spec.seed))
    distributed.barrier()
    return load_job_tokenizer(config)


def create(directory: Path, section: CreateModel, texts: Sequence[str], seed: int) -> None:
    """A fresh tokenizer and model. Raises ValueError where they do not fit each other."""
    create_tokenizer(texts, section.tokenizer.vocab_size).save_pretrained(directory)
    # As every role will load it: some model types bring a tokenizer class, and tokens, of their own.
    tokenizer = load_tokenizer(str(directory))
    create_policy(section.model_type, section.config, tokenizer, seed).save_pretrained(directory)
    if tokenizer.get_vocab() != load_tokenizer(str(directory)).get_vocab():
        raise ValueError(
            f"{section.model_type!r} models insist on a tokenizer class of their own; use another type, such as llama"
        )


def make_task(ctx: TrainerContext, config: RunConfig, rows: Sequence[Row], held_out: Sequence[Row]) -> Task:
    """What the training loop runs for this job's algorithm."""
    if ctx.spec.algorithm == "ppo":
        return ppo(ctx, config, rows, held_out)
    return supervised(ctx, config, rows)


def engine(ctx: TrainerContext, config: RunConfig, model: PreTrainedModel, rate: float) -> TrainedModel:
    """A model under DeepSpeed, as the manifest wants it."""
    spec, dtype = config.spec, config.dtype(Role.TRAINER)
    precision = {"bfloat16": {"bf16": {"enabled": True}}, "float16": {"fp16": {"enabled": True}}}.get(
        dtype, {}
    )
    return TrainedModel(
        model,
        deepspeed={**precision, **spec.trainer.deepspeed.raw()},
        learning_rate=rate,
        betas=spec.optimizer.betas,
        epsilon=spec.optimizer.epsilon,
        weight_decay=spec.optimizer.weight_decay,
        gradient_clip=spec.optimizer.gradient_clip,
        micro_batch_tokens=spec.trainer.micro_batch_tokens,
        pad_token_id=ctx.tokenizer.pad_token_id,
    )


def supervised(ctx: TrainerContext, config: RunConfig, rows: Sequence[Row]) -> Task:
    head: Head = "score" if ctx.spec.algorithm == "reward" else "causal"
    model = load_model(config, "policy", Role.TRAINER, ctx.tokenizer, head)
    rate = ctx.spec.optimizer.learning_rate
    return Supervised(ctx, KINDS[ctx.spec.algorithm], engine(ctx, config, model, rate), rows)


def ppo(ctx: TrainerContext, config: RunConfig, rows: Sequence[Row], held_out: Sequence[Row]) -> Task:
    spec = ctx.spec
    actor = load_model(config, "policy", Role.TRAINER, ctx.tokenizer)
    critic = load_model(config, "critic", Role.TRAINER, ctx.tokenizer)
    optimizer = spec.optimizer
    policy = engine(ctx, config, actor, optimizer.learning_rate)
    critic_rate = optimizer.critic_learning_rate
    value = engine(ctx, config, critic, optimizer.learning_rate if critic_rate is None else critic_rate)
    return PPO(
        ctx,
        policy=policy,
        critic=value,
        fleet=None if spec.generator.shared_with_trainer else fleet(ctx, policy),
        scorers=scorers(ctx),
        rows=rows,
        held_out=held_out,
    )


def fleet(ctx: TrainerContext, policy: TrainedModel) -> Fleet:
    if ctx.services is None:
        return Fleet(ctx, policy, None, None)
    spec, services = ctx.spec, ctx.services
    sync = WeightSync(
        services.http,
        host=services.host,
        timeout_s=spec.weights.timeout_seconds,
        bucket_bytes=spec.weights.bucket_megabytes << 20,
        device=ctx.ranks.device,
        fault=faults.point,
    )
    client = VllmClient(
        services.http,
        model=ctx.job,
        sampling=spec.sampling,
        seed=spec.seed,
        eos=ctx.tokenizer.eos_token_id,
        concurrent=spec.generator.concurrent_requests,
        timeout=spec.generator.timeout_seconds,
    )
    return Fleet(ctx, policy, sync, client)


def scorers(ctx: TrainerContext) -> Scorers | None:
    if ctx.services is None:
        return None
    spec, services = ctx.spec, ctx.services

    def scorer(role: Role, route: str) -> Scorer:
        section = spec.reward if role is Role.REWARD else spec.reference
        return Scorer(
            role,
            route,
            http=services.http,
            roster=services.roster,
            timeout=section.timeout_seconds,
            patience=section.startup_timeout_seconds,
        )

    return Scorers(scorer(Role.REWARD, SCORE_ROUTE), scorer(Role.REFERENCE, LOGPROBS_ROUTE))
