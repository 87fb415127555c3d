"""Views of models, engines, data and losses inside the roles, computed on small inputs.

Files and models are in the present directory, see `test_every_leaf.py`.
"""

from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
import torch
from tests.unit.manifest_fields.host import config
from tests.unit.manifest_fields.parts import context, instead
from tests.unit.trainer.ops.made import columns
from tests.unit.trainer.replay.made import episode, words

from rlhf_api.contract.run import roles_of
from rlhf_api.contract.samples import Sample
from rlhf_api.field_types import ModelField
from rlhf_api.graph import REFERENCE_TOP, Compute, Generate
from rlhf_api.job import RLHFJob
from rlhf_api.rules.own_algorithm import resolve
from rlhf_trainer.checkpoint.rng import choose_kernels
from rlhf_trainer.data.dataset import open_datasets, stream
from rlhf_trainer.data.prompts import prompts
from rlhf_trainer.data.solve_rates import SolveRates
from rlhf_trainer.metrics.step_lines import StepLines
from rlhf_trainer.models.deepspeed_config import deepspeed_settings
from rlhf_trainer.models.pretrained import create
from rlhf_trainer.models.pretrained import job_models as loading
from rlhf_trainer.models.pretrained.vision import load_reader
from rlhf_trainer.ops import OpContext, compute_fn, loss_fn
from rlhf_trainer.ops.datasets import given_columns
from rlhf_trainer.ops.pretraining import mixed
from rlhf_trainer.ops.row_check import RowChecker, check_all
from rlhf_trainer.process.settings import model_source
from rlhf_trainer.replay.buffer import EpisodeReplayBuffer, ReplayBuffer
from rlhf_trainer.replay.samplers import EpisodeSampler
from rlhf_trainer.replay.samples import choose_samples
from rlhf_trainer.rollout.prompt_source import PromptSource
from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.batches import plan as micro_batches
from rlhf_trainer.training import assembly
from rlhf_trainer.updates.entropy_control import adapt_entropy_coefficient
from rlhf_trainer.updates.kl_control import adapt_kl_coefficient
from rlhf_trainer.updates.updates import PretrainingText, learning_rate_of, trained_rows

_MODELS: dict[Any, Any] = {}


def sources(job: RLHFJob) -> Any:
    """Paths of models and the dtypes of roles that hold one, and adapters."""
    made = config(job)
    model_sources = [model_source(made, field) for field in (*get_args(ModelField), "tokenizer")]
    return model_sources, [made.dtype(role) for role in roles_of(job.spec)]


def creation(job: RLHFJob) -> Any:
    """The model and the tokenizer that a job makes for itself."""
    section = job.spec.model.create
    if section is None:
        return None
    tokenizer = create.create_tokenizer(["a film, a good film, a bad film"] * 9, section.tokenizer.vocab_size)
    model = create.create_policy(section.model_type, section.config, tokenizer, job.spec.seed)
    return tokenizer.get_vocab(), repr(model.config), [float(p.detach().sum()) for p in model.parameters()]


def _model(*given: Any) -> Any:
    """Read once for each path, dtype and head."""
    made, used, tokenizer = given
    key = model_source(made, used.field).path, made.spec.trained_dtype(used.field), used.head
    if key not in _MODELS:
        _MODELS[key] = loading.load_trained(made, used, tokenizer)
    return _MODELS[key]


def engines(job: RLHFJob) -> Any:
    """The arguments of DeepSpeed's engine of each trained model, its adapter, and the learning rates."""
    arguments: list[Any] = []
    with instead(assembly, "TrainedModel") as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "load_trained", lambda *given: deepcopy(_model(*given)))
        for used in job.spec.graph.trained:
            assembly.trained_model(context(job), config(job), used)
    for given, named in made.told:
        adapter = named.pop("adapter", None)
        model, optimizer, trainer = given
        adam = optimizer.model_dump()
        read = {"attention", "kernels", "gradient_checkpointing", "sequence_parallel_size"}
        arguments += [type(model).__name__, model.dtype, named, adam, trainer.model_dump(include=read)]
        arguments += [deepspeed_settings(named["deepspeed"], adam, optimizer.gradient_clip)]
        arguments += [adapter and (adapter.fingerprint, adapter.config.to_dict())]
        arguments += [[name for name, parameter in model.named_parameters() if parameter.requires_grad]]
    with instead(torch, "use_deterministic_algorithms") as chosen:
        choose_kernels(job.spec.trainer)
    rates = [learning_rate_of(job.spec, critic, step) for critic in (True, False) for step in range(4)]
    return arguments, chosen.told, rates


def data(job: RLHFJob) -> Any:
    """Rows in their order and as tokens."""
    spec, datasets = job.spec, open_datasets(job.spec)
    rows, text = datasets.rows, datasets.text
    run = config(job)
    tokenizer = loading.load_job_tokenizer(run)
    reader = load_reader(run) if Path(model_source(run, "policy").path).is_dir() else None
    fit = check_all([RowChecker(rows, spec.graph.rows, tokenizer, spec.data, reader)])
    places, requested = stream(rows, spec.seed).take(12), None
    if spec.data.curriculum is not None:
        rates = SolveRates(spec.data.curriculum, spec.seed)
        for epoch, scores in enumerate(((0.9, 0.9), (0.1, 0.1), (0.1, 0.9))):
            rates.record(2 * epoch, 0, [0.9])
            rates.record(2 * epoch + 1, 1, scores)
        requested = [(rates.asks(at, 0), rates.asks(at, 1)) for at in range(99)]
    if isinstance(spec.graph.source, Generate):
        trainer, count = context(job), spec.data.prompts_per_step
        trainer.tokenizer = tokenizer
        issued = PromptSource(trainer, rows).issue(count, spec.steps * count)
        tokens: Any = prompts(rows, places, tokenizer, spec.data), len(issued)
    else:
        kind = spec.graph.rows
        made, metrics = given_columns(kind, [rows[i] for _, i in places], tokenizer, spec.data, reader)
        tokens = made.sequences.tokens.tolist(), metrics
    more = {
        name: [rows_[i].model_dump() for i in range(len(rows_))] for name, rows_ in datasets.held_out.items()
    }
    taken = None
    if text is not None:
        source = PretrainingText(text, context(job))
        taken = source.take().sequences.tokens.tolist(), source.coefficient
    return repr(tokens), more, taken, fit, requested


def losses(job: RLHFJob) -> Any:
    """Every compute operation and loss of the graph on made columns, twice, with the running state between."""
    algorithm = resolve(job.spec)
    ctx, numbers = OpContext(job.spec, algorithm.settings), list[Any]()
    for _ in range(2):
        made = columns()
        made = made.with_tokens(token_scores=made["values"])
        if REFERENCE_TOP in algorithm.graph.train[0].reads:
            ids = torch.arange(2.0).expand(len(made["values"]), 2)
            made = made.with_tokens(
                **{REFERENCE_TOP: torch.cat([made["values"][:, None] - ids - 9, ids], -1)}
            )
        for node in algorithm.graph.prepare:
            if isinstance(node, Compute):
                made = compute_fn(node.function, ctx.spec)(made, ctx)
                numbers += [made[name].tolist() for name in node.writes]
        whole = made
        for node in algorithm.graph.train:
            made, group = trained_rows(node, whole), algorithm.graph.group(node)
            loss = loss_fn(node.loss, ctx.spec)(made, ctx)
            sequences, draw = made.sequences, torch.Generator().manual_seed(3)
            if job.spec.pretraining:
                sequences, loss = mixed(sequences, loss, columns(), job.spec.pretraining.coefficient)
            tokens = int(sequences.response_lengths.sum())
            output = torch.randn(tokens, 2, generator=draw)
            output[: len(made["logprobs"]), 0] = made["logprobs"] + 0.3 * output[: len(made["logprobs"]), 0]
            for rows in micro_batches(sequences.lengths.tolist(), 1, 1000, group)[0]:
                micro = MicroBatch.build(sequences, rows, pad_token_id=0)
                own = output[micro.response_index]
                read = own if node.output.startswith("logprobs_and_entropy") else own[:, 0]
                read = torch.cat([own, own - 9], -1) if REFERENCE_TOP in node.reads else read
                value, statistics = loss(output[micro.rows, 0] if node.output == "scores" else read, micro)
                numbers += [float(value), {name: float(each) for name, each in statistics.items()}]
        metrics = dict[str, float]()
        adapt_kl_coefficient(ctx, whole, metrics)
        adapt_entropy_coefficient(ctx, {**metrics, "entropy": 0.1})
        numbers += [metrics, dict(ctx.state)]
    return numbers


def replay(job: RLHFJob) -> Any:
    """The window of earlier episodes, and those of its responses that a step trains on again."""
    section = job.spec.replay
    buffer, fresh = ReplayBuffer(section, words), EpisodeReplayBuffer(episode(9), words)
    for number in range(1, 7):
        buffer.add(episode(number), step=number)
    window = buffer.replayable()
    picks = EpisodeSampler(section, job.spec.seed).picks(window, fresh, 5) if section.window else []
    return [past_episode.episode_id for past_episode in window], picks


def samples(job: RLHFJob) -> Any:
    """Responses that are kept for people, and how many bytes of a step."""
    section = job.spec.samples
    with TemporaryDirectory() as folder:
        file = Path(folder, "samples.jsonl")
        sample = Sample(
            step=1,
            prompt_id="0/1",
            prompt="",
            response="x" * (3 << 20),
            weight_version=0,
            prompt_length=1,
            response_length=1,
        )
        StepLines(file, section.max_megabytes << 20, 0).add(1, [sample])
        return len(choose_samples(episode(9), section.prompts_per_step)), file.stat().st_size


VIEWS = (sources, creation, engines, data, losses, replay, samples)
