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
from ..fleet import Fleet
from ..loop import Task
from ..policy.engine import Engine
from ..policy.load import (
    check_fit,
    create_policy,
    create_tokenizer,
    load_critic,
    load_policy,
    load_reward,
    load_tokenizer,
)
from ..ranks import Ranks
from ..rollout.vllm import VllmClient
from ..run import Run
from ..scoring.client import Scorer
from ..scoring.messages import LOGPROBS_ROUTE, SCORE_ROUTE
from ..tasks.experience import Scorers
from ..tasks.ppo import PPO
from ..tasks.supervised import KINDS, Supervised
from ..weights.sync import WeightSync
from .models import loading, torch_dtype
from .settings import longest, policy_path, tokenizer_path


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
    return loading("spec.model.tokenizer", lambda: load_tokenizer(tokenizer_path(config)))


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


def make_task(job: Run, config: RunConfig, rows: Sequence[Row], held_out: Sequence[Row]) -> Task:
    """What the training loop runs for this job's algorithm."""
    if job.spec.algorithm == "ppo":
        return ppo(job, config, rows, held_out)
    return supervised(job, config, rows)


def engine(job: Run, config: RunConfig, model: PreTrainedModel, rate: float) -> Engine:
    """A model under DeepSpeed, as the manifest wants it."""
    spec, dtype = config.spec, config.dtype(Role.TRAINER)
    precision = {"bfloat16": {"bf16": {"enabled": True}}, "float16": {"fp16": {"enabled": True}}}.get(
        dtype, {}
    )
    return Engine(
        model,
        deepspeed={**precision, **spec.trainer.deepspeed.raw()},
        learning_rate=rate,
        betas=spec.optimizer.betas,
        epsilon=spec.optimizer.epsilon,
        weight_decay=spec.optimizer.weight_decay,
        gradient_clip=spec.optimizer.gradient_clip,
        micro_batch_tokens=spec.trainer.micro_batch_tokens,
        pad_token_id=job.tokenizer.pad_token_id,
    )


def supervised(job: Run, config: RunConfig, rows: Sequence[Row]) -> Task:
    load = load_reward if job.spec.algorithm == "reward" else load_policy
    dtype = torch_dtype(config.dtype(Role.TRAINER))
    model = loading("spec.model.policy", lambda: load(policy_path(config), dtype))
    loading("spec.model.policy", lambda: check_fit(model.config, job.tokenizer, longest(job.spec)))
    rate = job.spec.optimizer.learning_rate
    return Supervised(job, KINDS[job.spec.algorithm], engine(job, config, model, rate), rows)


def ppo(job: Run, config: RunConfig, rows: Sequence[Row], held_out: Sequence[Row]) -> Task:
    spec, dtype = job.spec, torch_dtype(config.dtype(Role.TRAINER))
    actor = loading("spec.model.policy", lambda: load_policy(policy_path(config), dtype))
    loading("spec.model.policy", lambda: check_fit(actor.config, job.tokenizer, longest(spec)))
    path = spec.model.critic or spec.model.reward or policy_path(config)
    field = "critic" if spec.model.critic else "reward" if spec.model.reward else "policy"
    critic = loading(f"spec.model.{field}", lambda: load_critic(path, dtype))
    loading(f"spec.model.{field}", lambda: check_fit(critic.config, job.tokenizer, longest(spec)))
    optimizer = spec.optimizer
    policy = engine(job, config, actor, optimizer.learning_rate)
    critic_rate = optimizer.critic_learning_rate
    value = engine(job, config, critic, optimizer.learning_rate if critic_rate is None else critic_rate)
    return PPO(
        job,
        policy=policy,
        critic=value,
        fleet=None if spec.generator.shared_with_trainer else fleet(job, policy),
        scorers=scorers(job),
        rows=rows,
        held_out=held_out,
    )


def fleet(job: Run, policy: Engine) -> Fleet:
    if job.services is None:
        return Fleet(job, policy, None, None)
    spec, services = job.spec, job.services
    sync = WeightSync(
        services.http,
        host=services.host,
        timeout_s=spec.weights.timeout_seconds,
        bucket_bytes=spec.weights.bucket_megabytes << 20,
        device=job.ranks.device,
        fault=faults.point,
    )
    client = VllmClient(
        services.http,
        model=job.job,
        sampling=spec.sampling,
        seed=spec.seed,
        eos=job.tokenizer.eos_token_id,
        concurrent=spec.generator.concurrent_requests,
        timeout=spec.generator.timeout_seconds,
    )
    return Fleet(job, policy, sync, client)


def scorers(job: Run) -> Scorers | None:
    if job.services is None:
        return None
    spec, services = job.spec, job.services

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
