"""PPO: prompts -> rollouts -> scores -> experience -> updates -> weights to the generators."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlhf_api.rows import Row

from ..algorithms.ppo import build_experience, critic_loss, figures, minibatches, policy_loss
from ..batches import answer_logprobs, answer_values
from ..checkpoint.reading import Cut
from ..checkpoint.segments import Group
from ..data import RowStream, prompts
from ..fleet import Fleet
from ..policy.engine import Engine
from ..policy.export import save_model
from ..policy.state import load_training_state, training_state
from ..ranks import Message
from ..records import Experience, Prompt, Rollout, Sequences
from ..rollout.shared import generate_shared
from ..run import Run
from ..scoring.client import Scorer
from .rates import rate_at

SAMPLES = 4
"""Answers that each evaluation keeps as text, for people to read."""


@dataclass(frozen=True)
class Scorers:
    """Rank 0's connections to those who judge and compare."""

    reward: Scorer
    reference: Scorer


class PPO:
    """Policy and critic. Implements `loop.Task`."""

    def __init__(
        self,
        run: Run,
        *,
        policy: Engine,
        critic: Engine,
        fleet: Fleet | None,
        scorers: Scorers | None,
        rows: Sequence[Row],
        held_out: Sequence[Row],
    ) -> None:
        """`fleet` is None where the trainer generates itself; `scorers` is None on all ranks but the first."""
        self._run, self._spec = run, run.spec
        self._policy, self._critic = policy, critic
        self._fleet, self._scorers = fleet, scorers
        self._rows, self._held_out = rows, held_out
        self._stream = RowStream(len(rows), run.spec.seed)
        self._pending: Experience | None = None
        self._version = 0
        self._read = partial(answer_logprobs, temperature=run.spec.sampling.temperature)
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="score")

    def collect(self, step: int) -> dict[str, float]:  # noqa: ARG002
        """The next experience, unless a checkpoint brought one that was not trained on yet."""
        if self._pending is not None:
            return self._figures(self._pending, {})
        spec, began = self._spec, time.perf_counter()
        self._run.report(activity="generating")
        places = self._stream.take(spec.data.prompts_per_step)
        batch = prompts(self._rows, places, self._run.tokenizer, spec.data.max_prompt_length)
        rollouts = self._answers(batch)
        generated = time.perf_counter()
        self._run.report(activity="scoring")
        self._pending = self._experience(rollouts)
        timings = {"generate_seconds": generated - began, "score_seconds": time.perf_counter() - generated}
        return self._figures(self._pending, timings)

    def train(self, step: int) -> dict[str, float]:
        assert self._pending is not None
        experience, self._pending = self._pending, None
        ppo, sums, updates = self._spec.ppo, dict[str, float](), 0
        optimizer, critic_base = self._spec.optimizer, self._spec.optimizer.critic_learning_rate
        actor_rate = rate_at(self._spec, step, optimizer.learning_rate)
        critic_rate = actor_rate if critic_base is None else rate_at(self._spec, step, critic_base)
        for rows in minibatches(len(experience), ppo, seed=self._spec.seed * 1_000_003 + step):
            part = experience.select(rows)
            actor = self._policy.update(part.sequences, self._read, policy_loss(part, ppo), actor_rate)
            critic = self._critic.update(part.sequences, answer_values, critic_loss(part, ppo), critic_rate)
            named = {f"policy_{k}": v for k, v in actor.items()}
            named |= {f"critic_{k}": v for k, v in critic.items()}
            sums = {key: sums.get(key, 0.0) + value for key, value in named.items()}
            updates += 1
        means = {key: value / updates for key, value in sums.items()}
        staleness = float((self._version - experience.versions).double().mean())
        return {
            **means,
            "loss": means["policy_loss"],
            "learning_rate": actor_rate,
            "staleness": staleness,
        }

    def publish(self, version: int) -> None:
        self._version = version
        if self._fleet is not None:
            self._fleet.publish(version)

    def evaluate(self, step: int) -> dict[str, Any] | None:  # noqa: ARG002
        """The judge's mean over answers to the held-out prompts, with a few of them as text."""
        places = [(-1, row) for row in range(len(self._held_out))]
        length = self._spec.data.max_prompt_length
        rollouts = self._answers(prompts(self._held_out, places, self._run.tokenizer, length))
        if self._scorers is None:
            return None
        scores = self._scorers.reward.ask(
            _pack(rollouts), "scores", [dict(r.prompt.row) for r in rollouts], judge=True
        )
        decode = partial(self._run.tokenizer.decode, skip_special_tokens=True)
        samples = [
            {"prompt": r.prompt.row["prompt"], "answer": decode(r.tokens), "score": score}
            for r, score in zip(rollouts[:SAMPLES], scores.tolist(), strict=False)
        ]
        return {"mean": float(scores.mean()), "count": len(scores), "samples": samples}

    def state(self) -> Mapping[str, Any]:
        return {"position": self._stream.position, "pending": self._pending is not None}

    def groups(self) -> Mapping[str, Group]:
        pending = {} if self._pending is None else self._pending.arrays()
        return {
            "policy": training_state(self._policy),
            "critic": training_state(self._critic),
            "experience": pending.items(),
        }

    def blobs(self) -> Mapping[str, bytes]:
        return {}

    def restore(self, cut: Cut) -> None:
        self._stream.position = cut.state["position"]
        self._pending = Experience.from_arrays(cut.tensors("experience")) if cut.state["pending"] else None
        load_training_state(self._policy, partial(cut.tensor, "policy"))
        load_training_state(self._critic, partial(cut.tensor, "critic"))

    def export(self) -> None:
        save_model(self._policy, self._run.tokenizer, self._run.workdir / "policy")
        save_model(self._critic, self._run.tokenizer, self._run.workdir / "critic")

    def _answers(self, batch: list[Prompt]) -> list[Rollout]:
        """The answers to a batch of prompts: on every rank where the trainer generates, else on rank 0."""
        if self._fleet is not None:
            return self._fleet.answer(batch)
        sampling, tokenizer = self._spec.sampling, self._run.tokenizer
        return generate_shared(self._policy, self._run.ranks, tokenizer, batch, sampling, self._version)

    def _experience(self, rollouts: list[Rollout]) -> Experience:
        """Reward and reference work while the trainer computes its own log-probabilities and values."""
        arrays, _ = self._run.ranks.share(lambda: _message(rollouts))
        sequences = Sequences(arrays["tokens"], arrays["lengths"], arrays["prompt_lengths"])
        asked = None
        if self._scorers is not None:
            rows = [dict(r.prompt.row) for r in rollouts]
            asked = {
                "scores": self._pool.submit(self._scorers.reward.ask, sequences, "scores", rows),
                "logprobs": self._pool.submit(self._scorers.reference.ask, sequences, "logprobs"),
            }
        logprobs = self._policy.infer(sequences, self._read, sequences.answer_lengths)
        values = self._critic.infer(sequences, answer_values, sequences.answer_lengths)
        scored, _ = self._run.ranks.share(lambda: ({k: f.result() for k, f in (asked or {}).items()}, {}))
        return build_experience(
            sequences,
            sampled_logprobs=arrays["sampled_logprobs"],
            versions=arrays["versions"],
            logprobs=logprobs,
            reference_logprobs=scored["logprobs"],
            values=values,
            scores=scored["scores"],
            ppo=self._spec.ppo,
        )

    def _figures(self, experience: Experience, timings: dict[str, float]) -> dict[str, float]:
        sequences = experience.sequences
        ends = sequences.tokens[sequences.lengths.cumsum(0) - 1]
        finished = ends == self._run.tokenizer.eos_token_id
        return {
            **figures(experience, finished),
            "tokens": int(sequences.answer_lengths.sum()),
            "generate_seconds": 0.0,
            "score_seconds": 0.0,
            **timings,
        }


def _pack(rollouts: Sequence[Rollout]) -> Sequences:
    return Sequences.pack([(r.prompt.tokens, r.tokens) for r in rollouts])


def _message(rollouts: Sequence[Rollout]) -> Message:
    sequences = _pack(rollouts)
    return {
        "tokens": sequences.tokens,
        "lengths": sequences.lengths,
        "prompt_lengths": sequences.prompt_lengths,
        "sampled_logprobs": torch.tensor([p for r in rollouts for p in r.logprobs], dtype=torch.float32),
        "versions": torch.tensor([v for r in rollouts for v in r.versions], dtype=torch.int64),
    }, {}
