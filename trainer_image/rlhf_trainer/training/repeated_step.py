"""Repeats a step that a run has made: from the checkpoint before it, on the episode that the checkpoint after it holds.

What the sampler and other roles gave is taken as it is recorded. What the trainer made of it is computed again: the
policy's log-probabilities, advantages, the updates, and the coefficients that adapt.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import POLICY, Compute, Generate, Graph, Infer
from rlhf_api.sections.replay import EPISODES
from rlhf_api.spec import Spec
from rlhf_store.archive import Archive
from rlhf_store.errors import DamagedSnapshot
from rlhf_store.manifest import Entry
from rlhf_store.store import StoreOptions

from .. import ops
from ..checkpoint.reading import Snapshot
from ..checkpoint.rng import choose_kernels, restore_generators, seed_generators
from ..graph.executor import Executor
from ..graph.learner import Learner
from ..models.pretrained import architectures
from ..models.pretrained.vision import load_reader
from ..ranks.context import TrainerContext
from ..ranks.ranks import Ranks
from ..replay.table import Episode, decode
from ..rollout.responses import sampled_part
from ..tensors.columns import Columns
from ..updates.coefficients import adapt_coefficients
from ..updates.updates import Updates
from .assembly import make_learner, prepare_model


class Comparison(NamedTuple):
    """A result of a step beside the recorded one: whether all bits are equal, and the largest absolute difference."""

    name: str
    is_equal: bool
    difference: float


@dataclass(frozen=True)
class RepeatedStep:
    """`results` of the trainer's own computations. `sampling`: the largest difference in nats between the
    log-probabilities that the sampler recorded and those of the policy before the step; None where a token was sampled
    by earlier weights."""

    step: int
    responses: int
    results: Sequence[Comparison]
    sampling: float | None


def repeat_step(config: RunConfig, step: int | None) -> RepeatedStep:
    """Repeats `step`, or the newest one that can be. Raises InvalidJob where the job's steps cannot be repeated, or the
    store lacks a checkpoint that this needs, and DamagedSnapshot."""
    spec = config.spec
    if wrong := [*_problems(spec)]:
        raise InvalidJob(wrong)
    choose_kernels(spec.trainer)
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("LOCAL_RANK", "0")
    ranks = Ranks.join(0)
    seed_generators(ranks, spec.seed)
    architectures.register(spec.model.architectures)
    archive = Archive(config.store, StoreOptions(known=True))
    before, after = (Snapshot.open(ranks, archive, entry) for entry in _pair(archive.entries(), step))
    recorded = _episode_of(after)
    tokenizer = prepare_model(config, ranks, ())
    if load_reader(config) is not None:
        message = "reads images, which the prompts of a step may have, and a checkpoint has not"
        raise InvalidJob([Problem("spec.model.policy", f"{message}; only steps of another can be repeated")])
    ctx = TrainerContext(
        *(config.job, spec, Path(config.workdir), ranks, tokenizer), None, threading.Event(), {}
    )
    learner = make_learner(ctx, config)
    learner.restore(before)
    restore_generators(ranks, before.tensors("generators"))
    sampling = _compare_sampling(learner, sampled_part(recorded).columns, before.step)
    columns = _repeat(learner, Executor(ranks, learner, {}), recorded, after.step - 1)
    results = [*_compare_columns(columns, recorded.columns, _own_columns(learner.graph))]
    results += _compare_tensors(learner, after)
    state, saved = learner.state()["algorithm"], after.state.get("algorithm")
    results += [Comparison("running state of the algorithm", state == saved, 0.0)] if state or saved else []
    return RepeatedStep(after.step, len(recorded), results, sampling)


def _problems(spec: Spec) -> Iterator[Problem]:
    """Inputs of a step that its checkpoints do not hold."""
    if not isinstance(spec.graph.source, Generate):
        yield Problem(
            "spec.algorithm", f"{spec.algorithm} samples no responses, which a checkpoint would hold"
        )
    if spec.replay.dynamic:
        message = "dynamic trains on responses in the order in which they came, which is not recorded"
        yield Problem("spec.replay.streamDataLoaderType", message)
    if spec.replay.window:
        yield Problem("spec.replay.maxReplayEpisode", "the step also trained on responses of earlier steps")
    if spec.pretraining is not None:
        yield Problem("spec.pretraining", "the step also trained on rows of the data")


def _pair(entries: Sequence[Entry], step: int | None) -> tuple[Entry, Entry]:
    """The checkpoints of the step before, and of the step."""
    by_step = {entry.step: entry for entry in entries}
    steps = [number for number in sorted(by_step) if number - 1 in by_step]
    chosen = step if step is not None else steps[-1] if steps else None
    if chosen not in steps:
        present = ", ".join(map(str, sorted(by_step))) or "none"
        message = (
            f"a step needs the checkpoints of itself and of the step before; there are those of {present}"
        )
        remedy = "write them with spec.checkpoint.everySteps: 1, and keep two (keepLast)"
        raise InvalidJob(
            [Problem("--step", f"{message}; {remedy}; got {'the newest' if step is None else step}")]
        )
    assert chosen is not None
    return by_step[chosen - 1], by_step[chosen]


def _episode_of(snapshot: Snapshot) -> Episode:
    """The episode that the snapshot's last step trained on."""
    for name in sorted((name for name in snapshot.blobs if name.startswith(EPISODES)), reverse=True):
        try:
            episode = decode(snapshot.blob(name))
        except ValueError as error:
            raise DamagedSnapshot(f"{name} of the checkpoint of step {snapshot.step}: {error}") from error
        if episode.trained == snapshot.step:
            return episode
    message = "holds no episode that this step trained on; it is of an earlier release"
    raise InvalidJob([Problem(f"the checkpoint of step {snapshot.step}", message)])


def _repeat(learner: Learner, executor: Executor, recorded: Episode, step: int) -> Columns:
    """Trains on the episode as `step` did; returns its columns."""
    learner.op_ctx.step = step
    columns, own = recorded.columns, _own_columns(learner.graph)
    if torch.equal(columns["sampled_logprobs"], columns.tokens.get("logprobs", torch.zeros(0))):
        own -= {"logprobs"}  # those of the sampler served as the policy's
    kept_columns = replace(
        columns,
        tokens={name: column for name, column in columns.tokens.items() if name not in own},
        rows={name: column for name, column in columns.rows.items() if name not in own},
    )
    columns, updates = executor.run(kept_columns), Updates(learner)
    updates.run(columns)
    learner.follow()
    adapt_coefficients(learner, columns, updates.metrics(), step)
    return columns


def _compare_sampling(learner: Learner, columns: Columns, version: int) -> float | None:
    if not bool((columns["versions"] == version).all()):
        return None
    output = ops.output_fn("logprobs", learner.op_ctx.spec)
    logprobs = learner.models[POLICY].infer(columns.sequences, output, columns.lengths)
    return _compare("", logprobs, columns["sampled_logprobs"]).difference


def _own_columns(graph: Graph) -> set[str]:
    """Columns that the trainer computes itself."""
    return {
        column
        for node in graph.prepare
        if isinstance(node, Infer | Compute) and graph.remote(node) is None
        for column in node.writes
    }


def _compare_columns(columns: Columns, recorded: Columns, own: set[str]) -> Iterator[Comparison]:
    for name in sorted(own):
        if name in columns and name in recorded:
            yield _compare(name, columns[name], recorded[name])


def _compare_tensors(learner: Learner, snapshot: Snapshot) -> Iterator[Comparison]:
    """The trained tensors by model and kind."""
    for group, tensors in learner.groups().items():
        kinds: dict[str, list[Comparison]] = {}
        for name, tensor in tensors:
            saved = snapshot.tensor(group, name)
            kinds.setdefault(name.partition("/")[0], []).append(_compare(name, tensor.cpu(), saved))
        for kind, each in kinds.items():
            is_equal, difference = all(one.is_equal for one in each), max(one.difference for one in each)
            yield Comparison(f"{kind} of the {group}", is_equal, difference)


def _compare(name: str, tensor: Tensor, saved: Tensor) -> Comparison:
    if tensor.shape != saved.shape:
        return Comparison(name, is_equal=False, difference=float("inf"))
    difference = (tensor.double() - saved.double()).abs().nan_to_num()
    return Comparison(name, torch.equal(tensor, saved), float(difference.max()) if tensor.numel() else 0.0)
