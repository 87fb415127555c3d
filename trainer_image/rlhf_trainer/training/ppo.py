"""PPO: prompts -> answers -> scores -> episode -> updates, with replay -> weights to the generators."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from rlhf_api.rows import Row
from rlhf_store.manifest import DamagedSnapshot

from ..algorithms.ppo import figures, minibatches
from ..batches import response_logprobs
from ..checkpoint.reading import Snapshot
from ..checkpoint.segments import Group
from ..context import TrainerContext
from ..data import prompts
from ..generation.arrivals import Answers
from ..generation.fleet import Fleet
from ..generation.shared import generate_shared
from ..maths.agreement import mean_abs_difference, ratio_outside
from ..models.export import save_model
from ..models.state import load_training_state, training_state
from ..models.trained_model import TrainedModel
from ..records import Experience, Prompt
from ..replay.buffer import EpisodeReplayBuffer, ReplayBuffer
from ..replay.samplers import Sampling
from ..replay.table import Episode
from ..scoring.rewards import texts
from .experience import Appraiser, Scorers, joined, pack
from .prompt_source import PromptSource
from .updates import Updates

AGREEMENT = ("logprob_difference", "ratio_outside_share")
"""Figures that compare what generators and trainer say with the same weights."""
SAMPLES = 4
"""Answers that each evaluation keeps as text, for people to read."""


class PPO:
    """Policy and critic. Implements `loop.Task`.

    An episode is the answers to one step's prompts. It is collected before the step trains on it (`fixed`), or while
    it does (`dynamic`).
    """

    def __init__(
        self,
        ctx: TrainerContext,
        *,
        policy: TrainedModel,
        critic: TrainedModel,
        fleet: Fleet | None,
        scorers: Scorers | None,
        rows: Sequence[Row],
        held_out: Sequence[Row],
    ) -> None:
        """`fleet` is None where the trainer generates itself; `scorers` is None on all ranks but the first."""
        self._ctx, self._spec = ctx, ctx.spec
        self._policy, self._critic = policy, critic
        self._fleet, self._scorers = fleet, scorers
        self._held_out = held_out
        self._read = partial(response_logprobs, temperature=ctx.spec.sampling.temperature)
        self._appraiser = Appraiser(ctx, policy, critic, scorers, self._read)
        self._texts = partial(texts, tokenizer=ctx.tokenizer)
        self._sampling = Sampling(ctx.spec.replay, ctx.spec.seed)
        self._buffer = ReplayBuffer(ctx.spec.replay, self._texts)
        self._intake = PromptSource(ctx, rows)
        self._pending: Episode | None = None
        self._version = 0

    def collect(self, step: int) -> dict[str, float]:
        """The next episode, unless a checkpoint brought one that was not trained on yet. `dynamic` collects while it
        trains."""
        if self._pending is not None:
            return self._figures(self._pending, {})
        if self._spec.replay.dynamic:
            return {}
        began = time.perf_counter()
        self._ctx.report(activity="generating")
        answers = self._answers(self._intake.issue())
        generated = time.perf_counter()
        self._ctx.report(activity="scoring")
        self._pending = self._appraised(step, answers, sampled=self._stale())
        assert self._pending is not None, "a fleet that answers nothing raises"
        timings = {"generate_seconds": generated - began, "score_seconds": time.perf_counter() - generated}
        return self._figures(self._pending, timings)

    def train(self, step: int) -> dict[str, float]:
        updates = Updates(self._spec, self._policy, self._critic, self._read, step)
        if self._pending is not None:
            episode, told = self._pending, dict[str, float]()
            experience, replay_figures = self._with_replay(episode, step)
            updates.run(experience, self._minibatches(experience, step, self._spec.ppo.epochs))
            self._pending = None
        else:
            episode, told = self._train_as_they_come(step, updates)
            experience, replay_figures = self._with_replay(episode, step)
            replayed = experience.select(torch.arange(len(episode), len(experience)))
            updates.run(replayed, self._minibatches(replayed, step, 1))
            updates.run(experience, self._minibatches(experience, step, self._spec.ppo.epochs - 1))
        self._intake.trained(episode)
        self._buffer.add(episode, step + 1)
        staleness = float((self._version - experience.versions).double().mean())
        return {**told, **updates.figures(), **replay_figures, "staleness": staleness}

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
        """The judge's mean over answers to the held-out prompts, with a few of them as text."""
        if self._fleet is not None and self._stale():
            self._fleet.publish(self._version)
        places = [(-1, row) for row in range(len(self._held_out))]
        length = self._spec.data.max_prompt_length
        rollouts = self._answers(prompts(self._held_out, places, self._ctx.tokenizer, length)).rollouts
        if self._scorers is None:
            return None
        scores = self._scorers.reward.ask(
            pack(rollouts), "scores", [dict(r.prompt.row) for r in rollouts], judge=True
        )
        decode = partial(self._ctx.tokenizer.decode, skip_special_tokens=True)
        samples = [
            {"prompt": r.prompt.row["prompt"], "answer": decode(r.tokens), "score": score}
            for r, score in zip(rollouts[:SAMPLES], scores.tolist(), strict=False)
        ]
        return {"mean": float(scores.mean()), "count": len(scores), "samples": samples}

    def state(self) -> Mapping[str, Any]:
        return self._intake.state()

    def groups(self) -> Mapping[str, Group]:
        return {"policy": training_state(self._policy), "critic": training_state(self._critic)}

    def blobs(self) -> Mapping[str, bytes]:
        return self._buffer.blobs(self._pending)

    def restore(self, snapshot: Snapshot) -> None:
        """Raises InvalidJob where the run's prompts are others now."""
        try:
            self._pending = self._buffer.restore({name: snapshot.blob(name) for name in snapshot.blobs})
        except ValueError as error:
            raise DamagedSnapshot(f"the snapshot of step {snapshot.step}: {error}") from error
        self._intake.restore(snapshot.state, self._pending)
        load_training_state(self._policy, partial(snapshot.tensor, "policy"))
        load_training_state(self._critic, partial(snapshot.tensor, "critic"))

    def export(self) -> None:
        save_model(self._policy, self._ctx.tokenizer, self._ctx.workdir / "policy")
        save_model(self._critic, self._ctx.tokenizer, self._ctx.workdir / "critic")

    def _stale(self) -> bool:
        """Whether the generators hold earlier weights: then PPO's old log-probabilities are theirs."""
        return self._fleet is not None and self._fleet.version != self._version

    def _answers(self, batch: list[Prompt]) -> Answers:
        """The answers to a batch of prompts: on every rank where the trainer generates, else on rank 0."""
        if self._fleet is not None:
            return self._fleet.answer(batch)
        sampling, tokenizer = self._spec.sampling, self._ctx.tokenizer
        return Answers(
            generate_shared(self._policy, self._ctx.ranks, tokenizer, batch, sampling, self._version)
        )

    def _train_as_they_come(self, step: int, updates: Updates) -> tuple[Episode, dict[str, float]]:
        """A first pass over the step's answers, a minibatch at a time, while the generators go on.

        The policy moves under them, so the old log-probabilities are the generators' own: those at which the tokens
        were sampled.
        """
        assert self._fleet is not None, "checked with the manifest"
        self._ctx.report(activity="generating and training")
        size = -(-self._spec.ppo.minibatch_size // self._spec.sampling.answers_per_prompt)
        parts, agreement = list[Episode](), dict[str, float]()
        waited, scored, began = 0.0, 0.0, time.perf_counter()
        for answers in self._fleet.stream(self._intake.issue(), size):
            came = time.perf_counter()
            part = self._appraised(step, answers, sampled=True)
            waited, scored = waited + came - began, scored + time.perf_counter() - came
            if part is not None:
                if not parts and not self._stale():
                    agreement = self._agreement(part.experience)
                parts.append(part)
                updates.run(part.experience, [torch.arange(len(part))])
            began = time.perf_counter()
        episode = joined(parts)
        told = self._figures(episode, {"generate_seconds": waited, "score_seconds": scored})
        return episode, told | agreement

    def _agreement(self, experience: Experience) -> dict[str, float]:
        """Of generators and trainer, while both have the same weights: before the step's first update."""
        sequences, sampled = experience.sequences, experience.sampled_logprobs
        own = self._policy.infer(sequences, self._read, sequences.response_lengths)
        found = (mean_abs_difference(own, sampled), ratio_outside(own, sampled))
        return dict(zip(AGREEMENT, map(float, found), strict=True))

    def _appraised(self, step: int, answers: Answers, *, sampled: bool) -> Episode | None:
        """The answers as (a part of) the episode of `step`, entered into the ledger; None where there are none."""
        places = self._intake.places
        return self._intake.take(self._appraiser.collected(step + 1, answers, places, sampled=sampled))

    def _with_replay(self, episode: Episode, step: int) -> tuple[Experience, dict[str, float]]:
        """The step's own experience, then what is trained on again, the same on every rank; and its figures."""
        if not self._spec.replay.window:
            return episode.experience, {}
        window, fresh = self._buffer.replayable(), EpisodeReplayBuffer(episode, self._texts)
        shared = self._ctx.ranks.share(lambda: ({}, {"picks": self._sampling.picks(window, fresh, step)}))
        picks = shared[1]["picks"]
        if not picks:
            return episode.experience, {"replay_share": 0.0, "replay_age": 0.0}
        return Experience.join([episode.experience, self._buffer.experience(picks)]), {
            "replay_share": len(picks) / (len(picks) + len(episode)),
            "replay_age": sum(episode.number - number for number, _ in picks) / len(picks),
        }

    def _minibatches(self, experience: Experience, step: int, epochs: int) -> Iterable[torch.Tensor]:
        if not len(experience):
            return ()
        ppo = self._spec.ppo.model_copy(update={"epochs": epochs})
        return minibatches(len(experience), ppo, seed=self._spec.seed * 1_000_003 + step)

    def _figures(self, episode: Episode, timings: dict[str, float]) -> dict[str, float]:
        told = figures(episode.experience, episode.finished)
        return {
            **{name: value for name, value in told.items() if not self._stale() or name not in AGREEMENT},
            "tokens": int(episode.experience.sequences.response_lengths.sum()),
            "generate_seconds": 0.0,
            "score_seconds": 0.0,
            **timings,
        }
