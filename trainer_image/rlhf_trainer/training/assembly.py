"""Builds a manifest's models and tasks: load, check, wrap in DeepSpeed, connect."""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import distributed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_api.contract.report import STARTING
from rlhf_api.contract.run import RunConfig
from rlhf_api.dataset.rows import Row
from rlhf_api.graph import POLICY, Model
from rlhf_api.host.event_loop import EventLoop
from rlhf_api.rules.own_algorithm import resolve
from rlhf_api.sections.model import VISION, CreateModel

from .. import ops
from ..data.dataset import Datasets
from ..data.encode import end_tokens
from ..data.stop_strings import StopStrings
from ..data.vision import ImageReader
from ..dispatch.roster import Roster
from ..environments.environments import start_environments
from ..export.model_files import INITIAL, renamed_into_place
from ..graph.learner import Learner
from ..models.average import MovingAverage
from ..models.forward.routers import check_replayed
from ..models.frozen import freeze_parts
from ..models.pretrained.create import create_policy, create_tokenizer
from ..models.pretrained.job_models import load_job_tokenizer, load_trained, loading, trained_source
from ..models.pretrained.load import load_tokenizer, padding_id
from ..models.pretrained.vision import freeze, write_processor
from ..models.trained_model import TrainedModel
from ..ops import OpContext
from ..process import faults, progress
from ..process.gpu_turns import FOLDER, GpuTurns, own_gpus
from ..process.settings import model_source
from ..ranks.context import TrainerContext
from ..ranks.ranks import Ranks
from ..rollout.clients.engine_client import EngineClient
from ..rollout.clients.thought_budget import ThoughtBudget
from ..rollout.clients.turn_rounds import TurnRounds
from ..rollout.clients.turns_client import turns_client
from ..rollout.clients.vllm_client import VllmClient
from ..rollout.from_generators import GeneratorRollouts
from ..rollout.from_trainer import TrainerRollouts
from ..rollout.in_flight.fleet import Fleet
from ..rollout.remote import Remote, begin_scoring
from ..rollout.rollouts import Rollouts
from ..scoring.reward_client import RewardClient
from ..updates.updates import PretrainingText
from ..weights.broadcaster import Broadcaster
from ..weights.publisher import Publisher
from .offline import OfflineTask
from .online import OnlineTask
from .task import Task

if TYPE_CHECKING:
    from ..models.adapter import Adapter

log = logging.getLogger(__name__)

IMPORTING = f"{STARTING}: importing the environment"
"""Activity of a trainer that starts the environment's processes."""


def prepare_model(config: RunConfig, ranks: Ranks, rows: Sequence[Row]) -> PreTrainedTokenizerBase:
    """Loads the tokenizer; if the job creates its own model, rank 0 creates both first."""
    section, initial = config.spec.model.create, Path(config.workdir, INITIAL)
    if section is not None and ranks.first and not (config.resume and initial.exists()):
        texts = (text for row in progress.each(rows) for text in row.texts)
        with renamed_into_place(initial) as new:  # a start after a kill takes what is there for whole
            loading("spec.model.create", lambda: create(new, section, texts, config.spec.seed))
    distributed.barrier()
    return load_job_tokenizer(config)


def create(directory: Path, section: CreateModel, texts: Iterable[str], seed: int) -> None:
    """A fresh tokenizer and model. Raises ValueError where they do not fit each other."""
    images = section.model_type in VISION
    create_tokenizer(texts, section.tokenizer.vocab_size, images=images).save_pretrained(directory)
    # As every role will load it: some model types bring a tokenizer class, and tokens, of their own.
    tokenizer = load_tokenizer(str(directory))
    model = create_policy(section.model_type, section.config, tokenizer, seed)
    model.save_pretrained(directory)
    if images:
        write_processor(model.config, directory)
    if tokenizer.get_vocab() != load_tokenizer(str(directory)).get_vocab():
        raise ValueError(
            f"{section.model_type!r} models need a tokenizer class of their own; use another type, such as llama"
        )


def make_task(
    ctx: TrainerContext,
    config: RunConfig,
    datasets: Datasets,
    reader: ImageReader | None = None,
) -> Task:
    """The task of this job's algorithm: its graph, with a trained model and a call of a role for each node. `reader`:
    of a policy that reads images."""
    learner = make_learner(ctx, config)
    graph, models = learner.graph, learner.models
    remote = Remote.of(ctx, graph)
    if not graph.generates:
        return OfflineTask(ctx, learner, remote, datasets.rows, datasets.held_out, reader)
    return OnlineTask(
        ctx,
        learner,
        remote,
        datasets.rows,
        datasets.held_out,
        rollouts=make_rollouts(ctx, config, models[POLICY], remote.reward),
        text=None if datasets.text is None else PretrainingText(datasets.text, ctx),
        reader=reader,
    )


def make_learner(ctx: TrainerContext, config: RunConfig) -> Learner:
    """The graph of this job's algorithm with its trained models and their averages, as at the start of a run."""
    algorithm = resolve(ctx.spec)
    graph = algorithm.graph
    ops.check(graph, ctx.spec)
    models = {used: trained_model(ctx, config, used) for used in graph.trained}
    averages = {used: MovingAverage(models[used], share) for used, share in graph.averages.items()}
    return Learner(graph, models, OpContext(ctx.spec, algorithm.settings), averages)


def trained_model(ctx: TrainerContext, config: RunConfig, used: Model) -> TrainedModel:
    """A model of the graph, loaded and wrapped in DeepSpeed."""
    ctx.report(activity=f"{STARTING}: loading the {used.field} model")
    faults.point(f"load:{used.field}")
    model = load_trained(config, used, ctx.tokenizer)
    source = trained_source(config, used.field, ctx.tokenizer)
    if ctx.ranks.first and source != (usual := model_source(config, used.field)):
        log.warning("the %s starts from the policy: the tokenizer of %s is another", used.field, usual.path)
    if not config.spec.model.train_vision:
        freeze(model)
    if used.field == "policy":
        freeze_parts(model, config.spec.model.freeze)
    lora = config.spec.model.adapter(used.field)
    if lora is None:
        return engine(ctx, config, used, model)
    from ..models.adapter import Adapter  # PEFT takes two seconds to import

    where = f"spec.model.lora.{used.field}"
    adapter = loading(where, lambda: Adapter(model, lora, config.spec.seed, source.path))
    return engine(ctx, config, used, model, adapter)


def engine(
    ctx: TrainerContext,
    config: RunConfig,
    used: Model,
    model: PreTrainedModel,
    adapter: "Adapter | None" = None,
) -> TrainedModel:
    """Wraps a model of the graph in DeepSpeed, with the manifest's settings."""
    spec = config.spec
    precision = {"bfloat16": {"bf16": {"enabled": True}}, "float16": {"fp16": {"enabled": True}}}.get(
        spec.trained_dtype(used.field), {}
    )
    replays = used.field == "policy" and spec.experts.replay != "none"
    trained = TrainedModel(
        model,
        spec.optimizer,
        spec.trainer,
        deepspeed={**precision, **spec.trained_deepspeed(used.field).raw()},
        micro_batch_tokens=spec.trainer.micro_batch(used.field),
        pad_token_id=padding_id(ctx.tokenizer),
        adapter=adapter,
        balance=spec.experts.balance_coefficient if used.field == "policy" else 0.0,
        float32_head=spec.model.float32_head,
        replays=replays,
    )
    if replays:
        check_replayed(model, trained.routers, of_engine=spec.experts.replay == "rollout")
    return trained


def make_rollouts(
    ctx: TrainerContext, config: RunConfig, policy: TrainedModel, reward: RewardClient | None
) -> Rollouts:
    """Rollouts of whom the manifest says; `reward`: rank 0's client of what scores those ahead of training."""
    if ctx.spec.generator.shared_with_trainer:
        return TrainerRollouts(ctx, policy, begin_rounds(ctx, policy) if ctx.spec.environment else None)
    turns = share_gpu(ctx) if config.takes_turns else None
    sync, client = (
        connect_generators(ctx, policy, takes_turns=turns is not None) if ctx.services else (None, None)
    )
    weights = Publisher(ctx, policy, sync, turns=turns)
    return GeneratorRollouts(ctx, Fleet(ctx, client, weights), weights, begin_scoring(reward))


def begin_rounds(ctx: TrainerContext, policy: TrainedModel) -> TurnRounds:
    """This rank's part of the job's environments, of which the trainer samples the turns."""
    loop = EventLoop("environments") if ctx.services is None else ctx.services.http
    ends, ranks = end_tokens(ctx.tokenizer, policy.generation_config, ctx.spec.sampling), ctx.ranks
    ctx.report(activity=IMPORTING)
    starting = start_environments(ctx.spec, ctx.tokenizer, ends, share=ranks.world, members=members_of(ctx))
    return TurnRounds(loop.run(starting), loop, ctx.stop)


def members_of(ctx: TrainerContext) -> tuple[str, Roster] | None:
    """The job's token and the roster, by which processes of other roles are reached; None on a rank that reaches
    none."""
    return None if ctx.services is None else (ctx.services.token, ctx.services.roster)


def share_gpu(ctx: TrainerContext) -> GpuTurns:
    """The turns of this rank's GPU; of none, on a CPU."""
    index = ctx.ranks.device.index
    gpus = [] if index is None else own_gpus(os.environ)[index : index + 1]
    return GpuTurns(ctx.workdir / FOLDER, gpus)


def connect_generators(
    ctx: TrainerContext, policy: TrainedModel, *, takes_turns: bool
) -> tuple[Broadcaster, EngineClient]:
    """Rank 0's broadcast of weights and client of the engine."""
    assert ctx.services is not None
    spec, services = ctx.spec, ctx.services
    sync = Broadcaster(
        services.http,
        host=services.host,
        timeout_s=spec.weights.timeout_seconds,
        bucket_bytes=spec.weights.bucket_megabytes << 20,
        device=ctx.ranks.device,
        keep=spec.rollout.in_flight == "keep",
        takes_turns=takes_turns,
        fault=faults.point,
    )
    ends = end_tokens(ctx.tokenizer, policy.generation_config, spec.sampling)
    client = VllmClient(
        services.http,
        sampling=spec.sampling,
        seed=spec.seed,
        ends=ends,
        stops=StopStrings(ctx.tokenizer, spec.sampling.stop),
        vocabulary=policy.vocabulary,
        experts=policy.routers.shape if policy.routers and spec.experts.replay == "rollout" else None,
        thought=ThoughtBudget.of(spec.sampling, ctx.tokenizer),
    )
    if spec.environment is None:
        return sync, client
    ctx.report(activity=IMPORTING)
    starting = start_environments(spec, ctx.tokenizer, ends, members=members_of(ctx))
    environments = services.http.run(starting)
    return sync, turns_client(client, environments, spec, ctx.tokenizer, ends)
