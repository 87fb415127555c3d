"""From answers to experience: what reward, reference, policy and critic say of them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..algorithms.ppo import build_experience
from ..batches import OutputFn, response_values
from ..comms.ranks import Message
from ..context import TrainerContext
from ..generation.arrivals import Answers
from ..models.trained_model import TrainedModel
from ..records import Experience, Rollout, Sequences
from ..replay.table import Episode
from ..scoring.client import Scorer


@dataclass(frozen=True)
class Scorers:
    """Rank 0's connections to those who judge and compare."""

    reward: Scorer
    reference: Scorer


@dataclass(frozen=True)
class Collected:
    """Answers as every rank has them: `episode` is None where there is none; `requeued` positions of prompts, and
    positions of those that are given up, by reason."""

    episode: Episode | None
    requeued: list[int]
    dropped: Mapping[str, list[int]]


class Appraiser:
    """Makes experience of answers. Its method is a collective."""

    def __init__(
        self,
        ctx: TrainerContext,
        policy: TrainedModel,
        critic: TrainedModel,
        scorers: Scorers | None,
        read: OutputFn,
    ) -> None:
        """`scorers` is None on all ranks but the first."""
        self._ctx, self._policy, self._critic, self._read = ctx, policy, critic, read
        self._scorers = scorers
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="score")

    def collected(
        self, number: int, answers: Answers, places: Mapping[str, int], *, sampled: bool
    ) -> Collected:
        """The episode `number`, or a part of it; `places` has the position of each prompt by its id.

        Reward and reference work while the trainer computes values and, unless the generators' `sampled` ones are
        taken for the old ones, log-probabilities of its own.
        """
        arrays, header = self._ctx.ranks.share(lambda: _message(answers, places))
        requeued, dropped = header["requeued"], header["dropped"]
        if not header["ids"]:
            return Collected(None, requeued, dropped)
        sequences = Sequences(arrays["tokens"], arrays["lengths"], arrays["prompt_lengths"])
        asked = None
        if self._scorers is not None:
            rows = [dict(r.prompt.row) for r in answers.rollouts]
            asked = {
                "scores": self._pool.submit(self._scorers.reward.ask, sequences, "scores", rows),
                "logprobs": self._pool.submit(self._scorers.reference.ask, sequences, "logprobs"),
            }
        lengths = sequences.response_lengths
        logprobs = (
            arrays["sampled_logprobs"] if sampled else self._policy.infer(sequences, self._read, lengths)
        )
        values = self._critic.infer(sequences, response_values, lengths)
        scored, _ = self._ctx.ranks.share(lambda: ({k: f.result() for k, f in (asked or {}).items()}, {}))
        experience = build_experience(
            sequences,
            sampled_logprobs=arrays["sampled_logprobs"],
            versions=arrays["versions"],
            logprobs=logprobs,
            reference_logprobs=scored["logprobs"],
            values=values,
            scores=scored["scores"],
            ppo=self._ctx.spec.ppo,
        )
        return Collected(
            Episode(number, tuple(header["ids"]), arrays["positions"], self._finished(sequences), experience),
            requeued,
            dropped,
        )

    def _finished(self, sequences: Sequences) -> Tensor:
        """Whether each answer ended by itself: bool [N]."""
        ends = sequences.tokens[sequences.lengths.cumsum(0) - 1]
        return ends == self._ctx.tokenizer.eos_token_id


def joined(parts: Sequence[Episode]) -> Episode:
    """The parts of one episode as one."""
    return Episode(
        number=parts[0].number,
        prompt_ids=tuple(prompt_id for part in parts for prompt_id in part.prompt_ids),
        positions=torch.cat([part.positions for part in parts]),
        finished=torch.cat([part.finished for part in parts]),
        experience=Experience.join([part.experience for part in parts]),
    )


def pack(rollouts: Sequence[Rollout]) -> Sequences:
    return Sequences.pack([(r.prompt.tokens, r.tokens) for r in rollouts])


def _message(answers: Answers, places: Mapping[str, int]) -> Message:
    rollouts, sequences = answers.rollouts, pack(answers.rollouts)
    dropped: dict[str, list[int]] = {}
    for prompt_id, reason in answers.refused.items():
        dropped.setdefault(reason, []).append(places[prompt_id])
    header: dict[str, Any] = {
        "ids": [r.prompt.id for r in rollouts],
        "requeued": [places[prompt_id] for prompt_id in answers.requeued],
        "dropped": dropped,
    }
    return {
        "tokens": sequences.tokens,
        "lengths": sequences.lengths,
        "prompt_lengths": sequences.prompt_lengths,
        "sampled_logprobs": torch.tensor([p for r in rollouts for p in r.logprobs], dtype=torch.float32),
        "versions": torch.tensor([v for r in rollouts for v in r.versions], dtype=torch.int64),
        "positions": torch.tensor([places[r.prompt.id] for r in rollouts], dtype=torch.int64),
    }, header
