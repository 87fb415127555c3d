"""Training on responses that the policy samples: prompts -> responses -> preparing nodes -> episode -> updates, with
replay -> weights to the generators."""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from rlhf_api.graph import Graph
from rlhf_api.rows import Row
from rlhf_store.manifest import DamagedSnapshot

from ..checkpoint.reading import Snapshot
from ..checkpoint.segments import Group
from ..comms.roster import Stopped
from ..context import TrainerContext
from ..data import prompts
from ..generation.arrivals import Answers
from ..generation.fleet import Fleet
from ..generation.shared import generate_shared
from ..graph.executor import Executor, RemoteCall
from ..maths.groups import has_spread
from ..maths.kl import adaptive_kl_coefficient
from ..models.average import MovingAverage
from ..models.export import save_model
from ..models.state import load_training_state, training_state
from ..models.trained_model import TrainedModel
from ..ops import OpContext, output_fn
from ..ops.compute import kl_coefficient
from ..records import Columns, Prompt, Sequences
from ..replay.buffer import EpisodeReplayBuffer, ReplayBuffer
from ..replay.samplers import Sampling
from ..replay.table import Episode
from ..scoring.rewards import texts
from .prompt_source import PromptSource
from .responses import collected, joined, pack
from .step_metrics import AGREEMENT, step_metrics
from .updates import PretrainingText, Updates

SAMPLES = 4
"""Responses that each evaluation keeps as text, for people to read."""

Judge = Callable[[Sequences, Sequence[Mapping[str, Any]]], Tensor]
"""(sequences, their dataset rows) -> what the evaluation function says of each: float32 [N]."""


class OnlineTask:
    """Policy-gradient training by an algorithm's graph. Implements `loop.Task`.

    An episode is the responses to one step's prompts. It is collected before the step trains on it (`fixed`), or while
    it does (`dynamic`).
    """

    def __init__(
        self,
        ctx: TrainerContext,
        graph: Graph,
        models: Mapping[str, TrainedModel],
        remote: Mapping[str, RemoteCall],
        rows: Sequence[Row],
        op_ctx: OpContext,
        *,
        fleet: Fleet | None,
        judge: Judge | None,
        held_out: Sequence[Row],
        averages: Mapping[str, MovingAverage],
        pretraining: PretrainingText | None,
    ) -> None:
        """`fleet` is None where the trainer generates itself; `remote` and `judge` are rank 0's alone."""
        self._ctx, self._spec, self._graph, self._models = ctx, ctx.spec, graph, models
        self._policy = models["policy"]
        self._fleet, self._judge, self._held_out, self._op_ctx = fleet, judge, held_out, op_ctx
        self._averages, self._pretraining = averages, pretraining
        self._executor = Executor(ctx.ranks, graph, models, remote, op_ctx, averages)
        self._texts = partial(texts, tokenizer=ctx.tokenizer)
        self._sampling = Sampling(ctx.spec.replay, ctx.spec.seed)
        self._buffer = ReplayBuffer(ctx.spec.replay, self._texts)
        self._source = PromptSource(ctx, rows)
        self._pending: Episode | None = None
        self._version = 0

    def collect(self, step: int) -> dict[str, float]:
        """The next episode, unless a snapshot brought one that was not trained on yet. `dynamic` collects while it
        trains. A stop while responses are awaited puts their prompts back, and raises Stopped on every rank."""
        if self._pending is not None:
            return self._metrics(self._pending.columns, {})
        if self._spec.replay.dynamic:
            return {}
        self._op_ctx.step = step
        before = self._source.state()
        try:
            self._pending, timings = self._collected(step)
        except Stopped:
            self._source.restore(before, None)
            raise
        return self._metrics(self._pending.columns, timings)

    def train(self, step: int) -> dict[str, float]:
        self._op_ctx.step = step
        updates = Updates(self._graph, self._models, self._op_ctx, text=self._pretraining)
        epochs = int(getattr(self._op_ctx.settings, "epochs", 1))
        if self._pending is not None:
            episode, metrics = self._pending, dict[str, float]()
            columns, replay_metrics = self._with_replay(episode, step)
            updates.run(columns, epochs)
            self._pending = None
        else:
            episode, metrics = self._train_as_they_come(step, updates)
            columns, replay_metrics = self._with_replay(episode, step)
            replayed = columns.select(torch.arange(len(episode), len(columns)))
            if len(replayed):
                updates.run(replayed)
            updates.run(columns, epochs - 1)
        for average in self._averages.values():
            average.update()
        self._source.trained(episode)
        self._buffer.add(episode, step + 1)
        metrics |= updates.metrics()
        self._adapt(metrics, episode.columns)
        staleness = float((self._version - columns["versions"]).double().mean())
        return {**metrics, **replay_metrics, "staleness": staleness}

    def publish(self, version: int) -> None:
        """The generators get every so many versions, as `spec.weights.everySteps` says, and the first."""
        self._version = version
        if self._fleet is None:
            return
        if self._fleet.version < 0 or version % self._spec.weights.every_steps == 0:
            self._fleet.publish(version)
        else:
            self._fleet.move_on(version)

    def evaluate(self, step: int) -> dict[str, Any] | None:  # noqa: ARG002
        """The judge's mean over responses to the held-out prompts, with a few of them as text."""
        if self._fleet is not None and self._stale():
            self._fleet.publish(self._version)
        places = [(-1, row) for row in range(len(self._held_out))]
        length = self._spec.data.max_prompt_length
        rollouts = self._respond(prompts(self._held_out, places, self._ctx.tokenizer, length)).rollouts
        if self._judge is None:
            return None
        scores = self._judge(pack(rollouts), [dict(r.prompt.row) for r in rollouts])
        decode = partial(self._ctx.tokenizer.decode, skip_special_tokens=True)
        samples = [
            {"prompt": r.prompt.row["prompt"], "answer": decode(list(r.tokens)), "score": score}
            for r, score in zip(rollouts[:SAMPLES], scores.tolist(), strict=False)
        ]
        return {"mean": float(scores.mean()), "count": len(scores), "samples": samples}

    def state(self) -> Mapping[str, Any]:
        text = {"pretraining": self._pretraining.position} if self._pretraining else {}
        return {**self._source.state(), "algorithm": deepcopy(self._op_ctx.state), **text}

    def groups(self) -> Mapping[str, Group]:
        averages = {f"{name}_average": average.state() for name, average in self._averages.items()}
        return {name: training_state(model) for name, model in self._models.items()} | averages

    def blobs(self) -> Mapping[str, bytes]:
        return self._buffer.blobs(self._pending)

    def restore(self, snapshot: Snapshot) -> None:
        """Raises InvalidJob where the run's prompts are others now."""
        try:
            self._pending = self._buffer.restore({name: snapshot.blob(name) for name in snapshot.blobs})
        except ValueError as error:
            raise DamagedSnapshot(f"the snapshot of step {snapshot.step}: {error}") from error
        self._source.restore(snapshot.state, self._pending)
        self._op_ctx.restore(snapshot.state)
        if self._pretraining:
            self._pretraining.position = cast(int, snapshot.state["pretraining"])
        for name, model in self._models.items():
            load_training_state(model, partial(snapshot.tensor, name))
        for name, average in self._averages.items():
            average.load(partial(snapshot.tensor, f"{name}_average"))

    def export(self) -> None:
        for used in self._graph.trained:
            save_model(self._models[used.name], self._ctx.tokenizer, self._ctx.workdir / used.field)

    def _stale(self) -> bool:
        """The generators hold earlier weights: then the old log-probabilities are theirs."""
        return self._fleet is not None and self._fleet.version != self._version

    def _respond(self, batch: list[Prompt]) -> Answers:
        """The responses to a batch of prompts: on every rank where the trainer generates, else on rank 0."""
        if self._fleet is not None:
            return self._fleet.answer(batch)
        sampling, tokenizer = self._spec.sampling, self._ctx.tokenizer
        return Answers(
            generate_shared(self._policy, self._ctx.ranks, tokenizer, batch, sampling, self._version)
        )

    def _collected(self, step: int) -> tuple[Episode, dict[str, float]]:
        """The episode of a step, prepared for training. With dynamic sampling, groups whose responses all have one
        score give way to those of fresh prompts, for at most so many rounds."""
        rounds = int(getattr(self._op_ctx.settings, "dynamic_sampling", 0))
        wanted = self._spec.data.prompts_per_step
        seconds = {"generate_seconds": 0.0, "score_seconds": 0.0}
        parts: list[Episode] = []
        for left in range(rounds, -1, -1):
            began = time.perf_counter()
            self._ctx.report(activity="generating")
            answers = self._respond(self._source.issue(wanted))
            generated = time.perf_counter()
            self._ctx.report(activity="scoring")
            part = self._received(step, answers, sampled=self._stale())
            assert part is not None, "a fleet that answers nothing raises"
            rows = [dict(r.prompt.row) for r in answers.rollouts]
            if rounds:
                part, dropped = self._with_spread(part, rows, keep=not left and not parts)
                wanted = dropped
                parts += [part] if len(part) else []
            else:
                part, wanted = replace(part, columns=self._executor.run(part.columns, rows)), 0
                parts.append(part)
            seconds["generate_seconds"] += generated - began
            seconds["score_seconds"] += time.perf_counter() - generated
            if not wanted:
                break
        episode = joined(parts)
        return replace(episode, columns=self._executor.run(episode.columns)), seconds

    def _with_spread(
        self, part: Episode, rows: Sequence[Mapping[str, Any]], *, keep: bool
    ) -> tuple[Episode, int]:
        """The groups whose scores differ, and how many prompts are filtered out; none where `keep` is set and all
        groups would go."""
        scored = next(node for node in self._graph.prepare if "scores" in node.writes)
        columns = self._executor.run(part.columns, rows, until=scored)
        spread = has_spread(columns["scores"], columns["position"])
        if keep and not bool(spread.any()):
            spread = torch.ones_like(spread)
        gone = sorted(set(columns["position"][~spread].tolist()))
        self._source.filtered(gone)
        kept = spread.nonzero().flatten()
        ids = tuple(part.prompt_ids[i] for i in kept.tolist())
        return replace(part, prompt_ids=ids, columns=columns.select(kept)), len(gone)

    def _received(self, step: int, answers: Answers, *, sampled: bool) -> Episode | None:
        """The responses as (a part of) the episode of `step`, entered into the ledger; None where there are none.

        `sampled`: the log-probabilities of the generators are taken for those of the policy before the step.
        """
        found = self._source.take(collected(self._ctx.ranks, step + 1, answers, self._source.places))
        if found is None or not sampled:
            return found
        return replace(found, columns=found.columns.with_tokens(logprobs=found.columns["sampled_logprobs"]))

    def _train_as_they_come(self, step: int, updates: Updates) -> tuple[Episode, dict[str, float]]:
        """A first pass over the step's responses, a minibatch at a time, while the generators go on.

        The policy moves under them, so the old log-probabilities are the generators' own: those at which the tokens
        were sampled.
        """
        assert self._fleet is not None, "checked with the manifest"
        self._ctx.report(activity="generating and training")
        size = -(-self._op_ctx.settings.minibatch_size // self._spec.sampling.answers_per_prompt)
        parts, agreement = list[Episode](), dict[str, float]()
        waited, scored, began = 0.0, 0.0, time.perf_counter()
        for answers in self._fleet.stream(self._source.issue(self._spec.data.prompts_per_step), size):
            came = time.perf_counter()
            part = self._received(step, answers, sampled=True)
            if part is not None:
                rows = [dict(r.prompt.row) for r in answers.rollouts]
                part = replace(part, columns=self._executor.run(part.columns, rows))
                waited, scored = waited + came - began, scored + time.perf_counter() - came
                if not parts and not self._stale():
                    agreement = self._agreement(part.columns)
                parts.append(part)
                updates.run(part.columns, whole=True)
            began = time.perf_counter()
        episode = joined(parts)
        metrics = self._metrics(episode.columns, {"generate_seconds": waited, "score_seconds": scored})
        return episode, metrics | agreement

    def _agreement(self, columns: Columns) -> dict[str, float]:
        """Of generators and trainer, while both have the same weights: before the step's first update."""
        logprobs = self._policy.infer(columns.sequences, output_fn("logprobs", self._spec), columns.lengths)
        metrics = step_metrics(columns.with_tokens(logprobs=logprobs), stale=False)
        return {name: metrics[name] for name in AGREEMENT}

    def _with_replay(self, episode: Episode, step: int) -> tuple[Columns, dict[str, float]]:
        """The step's own responses, then those that are trained on again, the same on every rank; and its metrics."""
        if not self._spec.replay.window:
            return episode.columns, {}
        window, fresh = self._buffer.replayable(), EpisodeReplayBuffer(episode, self._texts)
        shared = self._ctx.ranks.share(lambda: ({}, {"picks": self._sampling.picks(window, fresh, step)}))
        picks = shared[1]["picks"]
        if not picks:
            return episode.columns, {"replay_share": 0.0, "replay_age": 0.0}
        return Columns.join([episode.columns, self._buffer.columns(picks)]), {
            "replay_share": len(picks) / (len(picks) + len(episode)),
            "replay_age": sum(episode.number - number for number, _ in picks) / len(picks),
        }

    def _adapt(self, metrics: dict[str, float], columns: Columns) -> None:
        """Moves the KL coefficient towards the target, where the job has one, and logs it."""
        settings = self._op_ctx.settings
        target = getattr(settings, "kl_target", None)
        if target is None:
            return
        logged = step_metrics(columns, stale=True) | metrics
        if "kl_mean" not in logged:  # while the critic alone is trained, nothing may have measured it
            return
        observed = logged["kl_mean"] * logged["answer_length_mean"]
        metrics["kl_coefficient"] = kl_coefficient(self._op_ctx)
        self._op_ctx.state["kl_coefficient"] = adaptive_kl_coefficient(
            metrics["kl_coefficient"], observed, target, settings.kl_horizon, len(columns)
        )

    def _metrics(self, columns: Columns, timings: dict[str, float]) -> dict[str, float]:
        return {
            **step_metrics(columns, stale=self._stale() or self._spec.replay.dynamic),
            "tokens": int(columns.lengths.sum()),
            "generate_seconds": 0.0,
            "score_seconds": 0.0,
            **timings,
        }
