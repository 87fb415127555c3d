"""Training on responses that the policy samples: prompts -> responses -> preparing nodes -> episode -> updates, with
replay -> weights to the generators."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from rlhf_api.contract.sample_tokens import FILE
from rlhf_api.contract.samples import Sample
from rlhf_api.dataset.rows import Row
from rlhf_api.graph import POLICY, Generate
from rlhf_api.sections.replay import EPISODES
from rlhf_store.errors import DamagedSnapshot

from ..checkpoint.reading import Snapshot
from ..checkpoint.rng import remember_generators, undisturbed_generators
from ..data.vision import ImageReader
from ..dispatch.roster import Stopped
from ..graph.learner import Learner
from ..ranks.context import TrainerContext
from ..replay.buffer import EpisodeReplayBuffer, ReplayBuffer
from ..replay.sample_tokens import encode_tokens
from ..replay.samplers import EpisodeSampler
from ..replay.samples import choose_samples, describe_samples
from ..replay.table import Episode
from ..rollout.collector import EpisodeCollector
from ..rollout.evaluation import evaluate
from ..rollout.in_flight.saved_responses import BLOB
from ..rollout.prompt_source import PromptSource
from ..rollout.remote import Remote
from ..rollout.responses import joined, sampled_part
from ..rollout.rollouts import Rollouts
from ..scoring.rewards import texts
from ..tensors.columns import Columns
from ..tensors.records import Prompt
from ..updates.coefficients import adapt_coefficients
from ..updates.updates import PretrainingText, Updates
from .graph_task import GraphTask
from .online_metrics import OnlineMetrics

log = logging.getLogger(__name__)


class OnlineTask(GraphTask):
    """Policy-gradient training by an algorithm's graph. Implements `task.Task`.

    An episode is the responses to one step's prompts. It is collected before the step trains on it (`fixed`), or while
    it does (`dynamic`).
    """

    def __init__(
        self,
        ctx: TrainerContext,
        learner: Learner,
        remote: Remote,
        rows: Sequence[Row],
        held_out: Mapping[str, Sequence[Row]],
        *,
        rollouts: Rollouts,
        text: PretrainingText | None = None,
        reader: ImageReader | None = None,
    ) -> None:
        """`held_out`: rows of each evaluation set; `text`: mixed into the updates; `reader`: of a policy that reads
        images."""
        super().__init__(ctx, learner, remote)
        self._spec, self._rollouts, self._text = ctx.spec, rollouts, text
        self._judges, self._held_out = remote.judges, held_out
        self._texts = partial(texts, tokenizer=ctx.tokenizer, stop=ctx.spec.sampling.stop)
        self._sampling = EpisodeSampler(ctx.spec.replay, ctx.spec.seed)
        routed = ctx.spec.experts.replay == "rollout"
        self._buffer = ReplayBuffer(ctx.spec.replay, self._texts, stored=ctx.ranks.first, routed=routed)
        assert isinstance(self._graph.source, Generate)
        self._source, self._reader = PromptSource(ctx, rows, self._graph.source.given, reader), reader
        self._collector = EpisodeCollector(ctx, learner, rollouts, self._executor, self._source, remote)
        policy, collector = learner.models[POLICY], self._collector
        self._metrics = OnlineMetrics(ctx, policy, collector, rollouts, remote.reward, rows)
        self._pending: Episode | None = None
        self._sampled: Episode | None = None
        """Responses of the last step that are kept for people, on rank 0."""

    def collect(self, step: int) -> dict[str, float]:
        """The next episode, unless a snapshot brought one that was not trained on yet; columns that this one lacks, as
        settings have changed, are computed, but for scores, see `restore`. `dynamic` collects while it trains. A stop
        while responses are awaited puts their prompts back, and raises Stopped on every rank."""
        self._op_ctx.step = step
        if self._pending is not None:
            self._rollouts.yield_gpus()
            self._pending = replace(self._pending, columns=self._executor.run(self._pending.columns))
            return self._metrics.collected(self._pending, {})
        if self._spec.replay.dynamic:
            return {}
        put_back = self._moment()
        try:
            self._pending, figures = self._collector.episode(step + 1)
        except Stopped:
            put_back(None)
            self._rollouts.put_back()
            raise
        return self._metrics.collected(self._pending, figures)

    def train(self, step: int) -> dict[str, float]:
        self._op_ctx.step = step
        updates = Updates(self._learner, text=self._text)
        if self._pending is not None:
            episode, metrics = self._pending, dict[str, float]()
            columns, replay_metrics = self._with_replay(episode, step)
            updates.run(columns)
            self._pending = None
        else:
            episode, metrics = self._train_as_they_come(step, updates)
            columns, replay_metrics = self._with_replay(episode, step)
            replayed = columns.select(torch.arange(len(episode), len(columns)))
            if len(replayed):
                updates.run(replayed, last=1)
            updates.run(columns, first=1)
        self._learner.follow()
        self._source.trained(episode)
        self._buffer.add(episode, step + 1)
        if self._ctx.ranks.first:
            self._sampled = choose_samples(sampled_part(episode), self._spec.samples.prompts_per_step)
        metrics |= updates.metrics()
        adapt_coefficients(self._learner, episode.columns, metrics, step)
        return {**metrics, **replay_metrics, **self._metrics.trained(episode.columns)}

    def samples(self, step: int) -> list[Sample]:
        return describe_samples(step, self._sampled, self._texts) if self._sampled else []

    def other_weights(self) -> str:
        """Names of generators whose served weights differ from what was sent, or ''."""
        return self._rollouts.find_other_weights()

    def publish(self, version: int) -> dict[str, float]:
        """Publishes the weights every `spec.weights.everySteps` versions, and the first."""
        return self._rollouts.advance(version, self._issue, collected=self._pending is not None)

    def evaluate(self, step: int) -> list[dict[str, Any]]:
        if self._rollouts.is_stale:
            self._rollouts.publish(self._issue, collected=self._pending is not None)
        # A stop may cut it off, after which the resumed run must draw as one without a stop.
        with undisturbed_generators(self._ctx.ranks.device):
            respond, judges = self._collector.respond, self._judges
            return evaluate(self._ctx, self._held_out, respond, judges, self._reader, first=not step)

    def state(self) -> Mapping[str, Any]:
        text = {"pretraining": self._text.position} if self._text else {}
        return {**self._source.state(self._pending), **self._learner.state(), **text}

    def blobs(self) -> Mapping[str, Callable[[], bytes]]:
        blobs = {**self._buffer.blobs(self._pending), **self._rollouts.blobs()}
        if self._sampled:
            blobs[FILE] = partial(encode_tokens, self._sampled, self._texts, self._ctx.tokenizer)
        return blobs

    def restore(self, snapshot: Snapshot) -> None:
        """Inverse of `state`. Raises InvalidJob if the run's prompts, an adapter or its base have changed."""
        self._learner.restore(snapshot)
        self._sampled = None
        changed = self._source.has_other_images(cast(dict[str, int], snapshot.state.get("data", {})))
        try:
            episodes = [name for name in snapshot.blobs if name.startswith(EPISODES)]
            self._pending = self._buffer.restore({name: snapshot.blob(name) for name in episodes})
            begun = snapshot.blob(BLOB) if BLOB in snapshot.blobs and not changed else None
            self._rollouts.restore(begun)
        except ValueError as error:
            raise DamagedSnapshot(f"the snapshot of step {snapshot.step}: {error}") from error
        self._source.restore(snapshot.state, self._pending)
        if self._pending is not None and (
            reason := self._collector.not_trainable(self._pending, snapshot.step)
            or ("their images are others now" if changed else "")
            or ("their images are scaled otherwise" if self._source.scales_otherwise(self._pending) else "")
        ):
            log.warning("the responses of the next step are asked for again: %s", reason)
            self._source.ask_again(self._pending)
            self._pending = None
        if self._pending is not None:
            self._pending = self._source.with_images(self._pending)
        if self._text:
            self._text.position = cast(int, snapshot.state.get("pretraining", 0))

    def reorder(self, times: int) -> None:
        """Reshuffles the prompts not issued yet."""
        self._source.reorder(times)

    def _issue(self) -> list[Prompt]:
        """The prompts of the next step."""
        return self._source.issue(self._spec.data.prompts_per_step)

    def _moment(self) -> Callable[[Episode | None], None]:
        """Puts prompts, random generators and running state back to this moment, but for the prompts of an episode that
        was collected before."""
        before, running = self._source.state(None), deepcopy(self._op_ctx.state)
        put_generators_back = remember_generators(self._ctx.ranks.device)

        def put_back(collected: Episode | None) -> None:
            self._source.restore(before, collected)
            put_generators_back()
            self._op_ctx.state = running

        return put_back

    def _train_as_they_come(self, step: int, updates: Updates) -> tuple[Episode, dict[str, float]]:
        """First pass over the step's responses, a minibatch at a time, while the generators continue. A stop ends it
        with those that came; the other prompts are put back. Raises Stopped if none did."""
        self._ctx.report(activity="generating and training")
        parts, agreement, seconds = list[Episode](), dict[str, float](), Counter[str]()
        (size,) = {node.minibatch_size for node in self._graph.train}
        put_back = self._moment()
        try:
            for part, timings in self._collector.stream(step + 1, size):
                seconds.update(timings)
                if part is not None:
                    if not parts and not self._rollouts.is_stale:
                        agreement = self._metrics.agreement(part.columns)
                    parts.append(part)
                    updates.run(part.columns, whole=True)
                put_back = self._moment()
        except Stopped:  # on every rank
            put_back(joined(parts) if parts else None)
            if not parts:
                raise
        episode = joined(parts)
        return episode, self._metrics.collected(episode, dict(seconds)) | agreement

    def _with_replay(self, episode: Episode, step: int) -> tuple[Columns, dict[str, float]]:
        """The step's own responses, then those that are trained on again, the same on every rank; and its metrics."""
        if not self._spec.replay.window:
            return episode.columns, {}
        window, fresh = self._buffer.find_joinable(episode.columns), EpisodeReplayBuffer(episode, self._texts)
        shared = self._ctx.ranks.share(lambda: ({}, {"picks": self._sampling.picks(window, fresh, step)}))
        picks = shared[1]["picks"]
        if not picks:
            return episode.columns, {"replay_share": 0.0, "replay_age": 0.0}
        return Columns.join([episode.columns, self._buffer.columns(picks)]), {
            "replay_share": len(picks) / (len(picks) + len(episode)),
            "replay_age": sum(episode.number - number for number, _ in picks) / len(picks),
        }
